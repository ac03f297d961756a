#!/bin/sh
# usage N: a node agent that starts programs all the time to measure directories and list mounts, N at a time.
n=0
while [ $n -lt "${1:-4}" ]; do
	( while kill -0 $$ 2>/dev/null; do
		for dir in /etc/ssl /etc/default /etc/init.d /usr/share/doc/libc6; do du -s $dir >/dev/null 2>&1; done
		cat /proc/self/mountinfo | grep -c overlay >/dev/null
		df / | tail -n 1 | cut -c 1-20 >/dev/null
	done ) &
	n=$((n + 1))
done
sleep 1
echo ready
wait
