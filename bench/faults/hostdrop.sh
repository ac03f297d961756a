#!/bin/sh
# A cron job of the host drops all caches again and again, so that "free memory" looks good.
# Nothing is left to undo: the write is an order, not a setting.
echo ready
while :; do
	echo 3 >/proc/sys/vm/drop_caches
	sleep 1
done
