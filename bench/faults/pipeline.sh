#!/bin/sh
# A report every half second, as a pipeline of five small programs.
i=0
while [ $i -lt 2000 ]; do echo "line $((i * 7919 % 2003)) of the report"; i=$((i + 1)); done >/tmp/report
echo ready
while :; do
	cat /tmp/report | sort | uniq -c | gzip -c | md5sum >/dev/null
	sleep 0.5
done
