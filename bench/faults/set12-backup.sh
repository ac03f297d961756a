#!/bin/sh
# The host's nightly backup copies volumes to the same disk, three at a time, without ionice.
d=/var/tmp/set12-backup
mkdir -p $d
for i in 1 2 3; do dd if=/dev/zero of=$d/volume-$i bs=1M count=200 2>/dev/null; done
sync -f $d 2>/dev/null || true
for i in 1 2 3; do
	while :; do dd if=$d/volume-$i of=$d/copy-$i bs=1M iflag=direct oflag=direct 2>/dev/null || sleep 1; done &
done
sleep 1
echo ready
wait
