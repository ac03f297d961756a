#!/bin/sh
# Health checks as commands: each looks at the processes, reads a status file and compares texts.
echo ok > /tmp/status
check() {
	while :; do
		sh -c 'ps | grep -v grep | grep -c health' > /dev/null
		sh -c 'test "$(cat /tmp/status | tr -d "\n")" = ok && date | cut -c1-10' > /dev/null
		sleep 0.02
	done
}
for i in 1 2 3 4 5 6 7 8; do check & done
sleep 2
echo ready
wait
