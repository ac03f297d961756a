#!/bin/sh
# A tuning guide for small machines: at most 1 MiB of dirty pages, for the whole host.
saved=/var/tmp/set13-dirty.saved
[ -f "$saved" ] || for k in dirty_ratio dirty_background_ratio dirty_bytes dirty_background_bytes; do echo "$k $(cat /proc/sys/vm/$k)"; done >"$saved"
echo 524288 >/proc/sys/vm/dirty_background_bytes
echo 1048576 >/proc/sys/vm/dirty_bytes
echo ready
while :; do sleep 60; done
