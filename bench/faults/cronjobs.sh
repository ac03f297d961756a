#!/bin/sh
# Healthy: every five seconds a job starts thirty short programs and makes and removes a small tree of files.
echo ready
while :; do
	i=0
	mkdir -p /data/job
	while [ "$i" -lt 15 ]; do
		date >"/data/job/$i"
		cat "/data/job/$i" >/dev/null
		i=$((i + 1))
	done
	rm -rf /data/job
	sleep 5
done
