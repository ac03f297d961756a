#!/bin/sh
# A miner of cryptocurrency that came through an open port runs on the host, with two processes for each CPU.
n=$(( $(nproc 2>/dev/null || echo 2) * 2 ))
[ "$n" -gt 16 ] && n=16
i=0
while [ "$i" -lt "$n" ]; do
	python3 -c '
import hashlib
block = b"kdevtmpfsi" * 100
while True:
    block = hashlib.sha256(block).digest() * 40
' &
	i=$((i + 1))
done
sleep 1
echo ready
wait
