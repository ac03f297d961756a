#!/bin/sh
# worker N: a supervisor with N workers that end at their start, because a setting is missing, and are started again at once.
start() {
	sh -c '
	name=$(echo worker | sed s/worker/app/); home=$(dirname /data/app/run); conf=$(basename $home)
	for key in host port user name mode; do value=$(echo $key=$conf | cut -d= -f2 | tr a-z A-Z); done
	i=0; while [ $i -lt 400 ]; do i=$((i + 1)); done
	cat /data/$name.conf 2>/dev/null || exit 1'
}
n=0
while [ $n -lt "${1:-4}" ]; do
	( while :; do start; done ) &
	n=$((n + 1))
done
sleep 1
echo ready
wait
