#!/bin/sh
# A guide for the safety of data has set the age of dirty pages to 10 ms and the flusher to 20 rounds a second.
cd /proc/sys/vm || exit 1
[ -e /tmp/h11-writeback.old ] || echo "$(cat dirty_writeback_centisecs) $(cat dirty_expire_centisecs)" >/tmp/h11-writeback.old
echo 1 >dirty_expire_centisecs || exit 1
echo 5 >dirty_writeback_centisecs || exit 1
echo ready
while :; do sleep 60; done
