#!/bin/sh
# Starts and removes containers without a pause, as a broken controller does.
echo ready
while :; do
	docker run --rm --network none --label holdfast.fault=1 busybox:latest true >/dev/null 2>&1
done
