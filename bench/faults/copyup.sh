#!/bin/sh
# Documentation/filesystems/overlayfs.rst: a change of a file's mode copies all of the file up
# from the lower layer. An image with 400 files of 256 KiB is changed so, again and again.
set -e
cd /data
mkdir -p lower upper work merged
i=0
while [ "$i" -lt 400 ]; do
	dd if=/dev/zero of="lower/$i" bs=256k count=1 2>/dev/null
	i=$((i + 1))
done
echo ready
while :; do
	mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged
	chmod -R 700 merged
	umount merged
	rm -rf upper work
	mkdir upper work
done
