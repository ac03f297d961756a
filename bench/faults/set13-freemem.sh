#!/bin/sh
# A cron job "frees memory" so that the graphs look well.
echo ready
while :; do
	sync
	echo 3 >/proc/sys/vm/drop_caches
	sleep 3
done
