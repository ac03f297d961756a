#!/bin/sh
# The host's nightly backup runs by day: three archives of /usr, compressed, at most 250 MB each, without nice or ionice.
one() {
	while :; do
		tar -cf - /usr 2>/dev/null | gzip -6 2>/dev/null | dd of="/var/tmp/set13-backup-$1.gz" bs=1M count=250 iflag=fullblock conv=fsync 2>/dev/null
	done
}
one 1 &
one 2 &
one 3 &
sleep 2
echo ready
wait
