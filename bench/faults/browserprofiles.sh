#!/bin/sh
# Each page that a headless browser renders leaves its profile of 4 MiB; at 180 profiles the oldest goes, so that the disk is spared.
n=0
while :; do
	n=$((n + 1))
	d=/data/puppeteer_dev_chrome_profile-$n
	mkdir -p $d/Cache $d/Default
	for f in 1 2 3 4; do dd if=/dev/zero of=$d/Cache/data_$f bs=65536 count=16 2>/dev/null; done
	echo '{}' >$d/Default/Preferences
	[ $n -eq 3 ] && echo ready
	[ $n -gt 180 ] && rm -rf /data/puppeteer_dev_chrome_profile-$((n - 180))
	sleep 0.4
done
