#!/bin/sh
# A build: ARG1 compilers at once, ARG2 seconds of pause after each unit.
jobs=${1:-8}
pause=${2:-0}
TMPDIR=/data
export TMPDIR
i=0
while [ $i -lt $jobs ]; do
	(
		while :; do
			cc -O2 -c -o /data/unit-$i.o "$FAULT/set17-unit.c"
			[ "$pause" = 0 ] || sleep $pause
		done
	) &
	i=$((i + 1))
done
echo ready
wait
