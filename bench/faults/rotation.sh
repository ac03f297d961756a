#!/bin/sh
# A service writes 2 MiB of records a second to /data and keeps the last four files of 8 MiB.
n=0
echo ready
while :; do
	dd if=/dev/zero bs=65536 count=8 2>/dev/null >>/data/records || exit 1
	n=$((n + 1))
	if [ $((n % 16)) = 0 ]; then
		mv -f /data/records.2 /data/records.3 2>/dev/null
		mv -f /data/records.1 /data/records.2 2>/dev/null
		mv -f /data/records /data/records.1
	fi
	sleep 0.25
done
