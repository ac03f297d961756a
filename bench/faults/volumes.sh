#!/bin/sh
# A CI runner makes a volume for each job, writes 8 MiB of packages to it and never removes it, at
# most 180 volumes. volumes-undo.sh removes them.
n=0
while [ $n -lt 180 ]; do
	name=$(docker volume create --label holdfast.fault=volumes) || exit 1
	dir=$(docker volume inspect --format '{{.Mountpoint}}' "$name") || exit 1
	dd if=/dev/urandom of="$dir/packages.tar" bs=65536 count=128 2>/dev/null || exit 1
	[ $n -gt 0 ] || echo ready
	n=$((n + 1))
	sleep 0.3
done
while :; do sleep 1; done
