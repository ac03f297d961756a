#!/bin/sh
# The control group above all containers has a CPU quota of 0.8 CPUs (CPUQuota= of the slice, --cgroup-parent).
# slicereset.sh undoes it.
s=/tmp/hf7-slice.state
find_pid() {
	for p in /proc/[0-9]*; do
		case $(tr '\0' ' ' <"$p/cmdline" 2>/dev/null) in
		"/fault/ordinary busy $1 "*) echo "${p#/proc/}"; return ;;
		esac
	done
}
a= b=
while [ -z "$a" ] || [ -z "$b" ]; do sleep 0.5; a=$(find_pid slice-a); b=$(find_pid slice-b); done
v1=$(awk '$3 == "cgroup" && $4 ~ /(^|,)cpu(,|$)/ { print $2; exit }' /proc/mounts)
v2=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
where() { # PID v1|v2
	if [ "$2" = v1 ]; then awk -F: '{ n = split($2, c, ","); for (i = 1; i <= n; i++) if (c[i] == "cpu") print $3 }' "/proc/$1/cgroup"
	else awk -F: '$1 == "0" { print $3 }' "/proc/$1/cgroup"; fi
}
if [ -n "$v1" ]; then kind=v1 top=$v1; else kind=v2 top=$v2; fi
pa=$(where "$a" $kind) pb=$(where "$b" $kind)
while :; do # the longest path that holds both
	pa=${pa%/*}
	[ -z "$pa" ] && { echo "the containers have no common control group below the root" >&2; exit 1; }
	case $pb in "$pa"/*) break ;; esac
done
if [ $kind = v1 ]; then
	f=$top$pa/cpu.cfs_quota_us
	period=$(cat "$top$pa/cpu.cfs_period_us") || exit 1
	set -- $((period * 80 / 100)) $((period * 110 / 100)) $((period * 150 / 100))
else
	f=$top$pa/cpu.max
	set -- "80000 100000"
fi
[ -e "$s" ] || { echo "$f"; cat "$f"; } >"$s" || exit 1
for q in "$@"; do
	if echo "$q" >"$f" 2>/dev/null; then echo ready; while :; do sleep 5; done; fi
done
echo "cannot write $f" >&2
exit 1
