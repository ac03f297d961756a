#!/bin/sh
# A health check that is run without a pause, in the container NAME.
echo ready
while :; do
	docker exec "$1" true >/dev/null 2>&1
done
