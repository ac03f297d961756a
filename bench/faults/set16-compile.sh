#!/bin/sh
# A build: generates one source file and compiles it, JOBS at once, again and again.
jobs=${1:-6}
pause=${2:-0}
dir=${TMPDIR:-/tmp}
src=$dir/unit-$$.c
i=0
{
	while [ $i -lt 120 ]; do
		echo "double f$i(double *a, double *b, int n) { double s = $i; for (int i = 0; i < n; i++) { for (int j = 0; j < n; j++) { s += a[i] * b[j] + (i ^ j ^ $i); if (s > 1e9) s /= b[i & j] + 1; } a[i] = s; } switch (n % 7) { case 0: s += 1; break; case 1: s *= 2; break; case 2: s -= a[n / 2]; break; case 3: s = -s; break; default: s += n; } return s; }"
		i=$((i+1))
	done
} > "$src"
k=0
while [ $k -lt "$jobs" ]; do
	( while :; do cc -O2 -c -o "$dir/unit-$$-$k.o" "$src" || sleep 1; [ "$pause" = 0 ] || sleep "$pause"; done ) &
	k=$((k+1))
done
sleep 2
echo ready
wait
