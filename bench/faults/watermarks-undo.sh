#!/bin/sh
n=10
[ -s /tmp/watermarks.saved ] && n=$(cat /tmp/watermarks.saved)
[ "$n" -lt 1000 ] || n=10
echo "$n" >/proc/sys/vm/watermark_scale_factor
rm -f /tmp/watermarks.saved
