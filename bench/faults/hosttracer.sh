#!/bin/sh
# An operator has left strace(1) attached to the database of a container.
pid=
while [ -z "$pid" ]; do
	for p in /proc/[0-9]*; do
		case $(tr '\0' ' ' <"$p/cmdline" 2>/dev/null) in
		"/fault/service calls "*) pid=${p#/proc/} ;;
		esac
	done
	sleep 0.5
done
strace -f -qq -T -o /dev/null -p "$pid" &
sleep 1
echo ready
wait
