#!/bin/sh
# Removes the groups of hostmoves.c. Its processes have ended with it, or end now.
for d in /sys/fs/cgroup/unified /sys/fs/cgroup/freezer /sys/fs/cgroup; do
	for g in "$d"/holdfast-fault-moves-*; do
		[ -d "$g" ] || continue
		for p in $(cat "$g/cgroup.procs"); do kill -9 "$p" 2>/dev/null; done
		i=0
		while ! rmdir "$g" 2>/dev/null && [ "$i" -lt 50 ]; do
			sleep 0.1
			i=$((i + 1))
		done
	done
done
exit 0
