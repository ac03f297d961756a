#!/bin/sh
# Looks at the health of a service with scripts that start small programs, ARG at once, without a pause.
probe() {
	while :; do
		load=$(cat /proc/loadavg | cut -d' ' -f1)
		up=$(cat /proc/uptime | awk '{ print $1 }')
		echo "$load $up" | grep -q '[0-9]' || echo unhealthy
		/bin/true
	done
}
i=0
while [ $i -lt ${1:-6} ]; do
	probe &
	i=$((i + 1))
done
echo ready
wait
