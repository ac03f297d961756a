#!/bin/sh
# A tuning guide's vm.watermark_scale_factor makes the kernel keep a quarter of the memory free at all times.
f=/proc/sys/vm/watermark_scale_factor
[ -e /tmp/watermarks.saved ] || cat $f >/tmp/watermarks.saved
echo 1500 >$f 2>/dev/null || echo 1000 >$f || exit 1
echo ready
while :; do sleep 1; done
