#!/bin/sh
# An operator has left strace(1) attached to the database of a container.
pid=
while [ -z "$pid" ]; do
	for p in /proc/[0-9]*; do
		[ "$(cat "$p/comm" 2>/dev/null)" = orders-db ] && pid=${p#/proc/}
	done
	sleep 0.5
done
strace -f -qq -T -o /dev/null -p "$pid" &
sleep 1
echo ready
wait
