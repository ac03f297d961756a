#!/bin/sh
# Documentation/filesystems/overlayfs.rst: the first write to a file of the image copies all of
# it up. A database of 96 MiB is part of an image, and each session that starts changes one
# byte of it.
set -e
cd /data
mkdir -p lower upper work merged
dd if=/dev/zero of=lower/db bs=1M count=96 2>/dev/null
echo ready
while :; do
	mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged
	printf x | dd of=merged/db bs=1 seek=4096 conv=notrunc 2>/dev/null
	umount merged
	rm -rf upper work
	mkdir upper work
done
