#!/bin/sh
# A healthy backup: archives 60 MB of its own, compressed, within its own share of a CPU; rests for a second between two.
dd if=/dev/urandom of=/data/photos bs=1M count=30 2>/dev/null
dd if=/dev/zero of=/data/mail bs=1M count=30 2>/dev/null
echo ready
while :; do
	tar -cf - /data/photos /data/mail 2>/dev/null | gzip -c >/data/backup.tgz
	sleep 1
done
