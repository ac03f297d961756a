#!/bin/sh
for s in /run/set6-disk/*.*; do
	[ -e "$s" ] || continue
	n=${s##*/}
	cat "$s" >"/sys/block/${n%.*}/queue/${n##*.}"
	rm -f "$s"
done
rmdir /run/set6-disk 2>/dev/null
exit 0
