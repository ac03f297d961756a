#!/bin/sh
# A daemon of the host spools into /dev/shm because that is fast, and removes nothing: 4 MiB of memory each second.
d=/dev/shm/host-spool
mkdir -p $d
echo ready
n=0
while :; do
	# bounded: 320 MiB
	[ $n -lt 160 ] && dd if=/dev/zero of=$d/frame-$n bs=1M count=2 2>/dev/null
	n=$((n + 1))
	sleep 0.5
done
