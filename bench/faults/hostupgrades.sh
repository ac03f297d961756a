#!/bin/sh
# unattended-upgrades: packages are unpacked with a sync for each file, and triggers rebuild a compressed image.
d=/var/tmp/set8-upgrades
mkdir -p $d || exit 1
(
	n=0
	while :; do
		n=$((n % 200 + 1))
		dd if=/dev/zero of=$d/file-$n.dpkg-new bs=16384 count=4 conv=fsync 2>/dev/null
		mv $d/file-$n.dpkg-new $d/file-$n
	done
) &
for k in 1 2; do
	(
		while :; do
			cat /bin/* 2>/dev/null | head -c 60000000 | gzip -9 >$d/initrd-$k.img
		done
	) &
done
echo ready
wait
