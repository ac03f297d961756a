#!/bin/sh
# A healthy compile: small files, one after the other, then linked, for ever.
d=/data/src
mkdir -p $d
i=0
while [ $i -lt 8 ]; do
	{
		echo '#include <stdio.h>'
		j=0
		while [ $j -lt 60 ]; do echo "int f${i}_$j(int x) { int s = 0; for (int k = 0; k < x; k++) s += (k * $j) ^ (s >> 3); return s; }"; j=$((j + 1)); done
	} >$d/unit$i.c
	i=$((i + 1))
done
echo ready
while :; do
	for f in $d/*.c; do
		# without a compiler: the same kind of work
		/usr/bin/cc -O2 -c "$f" -o "${f%.c}.o" 2>/dev/null || { gzip -9 -c "$f" "$f" "$f" >"${f%.c}.o"; md5sum $d/* >/dev/null; }
	done
done
