#!/bin/sh
# build JOBS: compiles the units of a project with JOBS compilers at a time, again and again.
jobs=${1:-1}
dir=/data/src
mkdir -p $dir
f=0
while [ $f -lt 40 ]; do
	echo "int f$f(int a, double *p) { double s = 0; for (int i = 0; i < a; i++) { s += p[i] * $f; if (s > 1e9) s /= p[i + 1]; switch (i % 7) { case 0: s += 1; break; case 1: s *= 2; break; case 2: s -= p[a]; break; default: p[i] = s; } } return (int)s; }"
	f=$((f + 1))
done >$dir/unit.c
j=0
while [ $j -lt "$jobs" ]; do
	( while :; do cc -O2 -c -o $dir/unit-$j.o $dir/unit.c || sleep 1; [ "$jobs" = 1 ] && sleep 0.2; done ) &
	j=$((j + 1))
done
sleep 1
echo ready
wait
