#!/bin/sh
# A tuning guide of years ago in sysctl.d: at most 2 MiB of dirty pages for the whole host, so that each writer waits for the disk.
cat /proc/sys/vm/dirty_ratio /proc/sys/vm/dirty_background_ratio /proc/sys/vm/dirty_bytes /proc/sys/vm/dirty_background_bytes >/tmp/set12-dirtybytes
echo 1048576 >/proc/sys/vm/dirty_background_bytes
echo 2097152 >/proc/sys/vm/dirty_bytes
echo ready
while :; do sleep 60; done
