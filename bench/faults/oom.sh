#!/bin/sh
# A service that the kernel kills again and again at its container's memory limit, cgroup-v2.rst:
# memory.events, oom_kill. "grow" is a copy of leak.c's program.
echo ready
while :; do
	"$FAULT/leak" memory 4096 400
	sleep 0.2
done
