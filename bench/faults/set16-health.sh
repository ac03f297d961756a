#!/bin/sh
# A health check: LOOPS shells ask for the state of a service by small programs, without a pause.
loops=${1:-4}
find_program() {
	for d in /bin /usr/bin; do [ -x "$d/$1" ] && { echo "$d/$1"; return; }; done
	if [ -x /bin/busybox ]; then echo "/bin/busybox $1"; else echo "$1"; fi
}
cat=$(find_program cat); cut=$(find_program cut); grep=$(find_program grep); awk=$(find_program awk); tr=$(find_program tr)
k=0
while [ $k -lt "$loops" ]; do
	(
		while :; do
			up=$($cat /proc/uptime | $cut -d' ' -f1)
			st=$($cat /proc/1/status | $grep State | $awk '{print $2}')
			[ -n "$(echo "$up $st" | $tr -d ' ')" ] || echo unhealthy
		done
	) &
	k=$((k+1))
done
sleep 1
echo ready
wait
