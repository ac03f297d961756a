#!/bin/sh
# An operator exports images to files of the host, without a limit of bandwidth: two copies at once, 400 MiB each,
# written over in place and flushed. At most 25 rounds.
dir=/var/tmp/hf7-export
mkdir -p "$dir" || exit 1
for c in 1 2; do
	(
		r=0
		while [ "$r" -lt 25 ]; do
			dd if=/dev/zero of="$dir/image-$c.tar" bs=1M count=400 conv=notrunc,fsync 2>/dev/null || break
			r=$((r + 1))
		done
		while :; do sleep 5; done
	) &
done
sleep 1
echo ready
wait
