#!/bin/sh
# logrotate with "compress": every few seconds three rotated logs are compressed at once.
i=0
while [ $i -lt 3000 ]; do
	echo "10.0.$((i % 250)).7 - - [29/Nov/2026:13:00:$((i % 60))] GET /api/v1/items/$((i * 7919 % 100003)) HTTP/1.1 200 $((i * 31 % 9973)) curl/8.1"
	i=$((i + 1))
done >/data/part.log
for n in 1 2 3; do
	j=0
	while [ $j -lt 100 ]; do cat /data/part.log; j=$((j + 1)); done >/data/access.log.$n
done
echo ready
while :; do
	for n in 1 2 3; do gzip -9 -c /data/access.log.$n >/data/access.log.$n.gz & done
	wait
	sleep 3
done
