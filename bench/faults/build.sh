#!/bin/sh
# Healthy work: compiles a program again and again.
echo ready
while :; do
	cc -O2 -pthread -o /data/out "$FAULT/storm.c"
	sleep 0.2
done
