#!/bin/sh
# A profiler outside of the containers takes a sample with its call chain 40000 times a second on each CPU (perf-record(1)).
perf record -q -a -g -e cpu-clock -F 40000 -o /dev/null >/dev/null 2>&1 &
sleep 1
kill -0 $! || exit 1
echo ready
wait
