#!/bin/sh
# The host's operator lets ksmd scan as fast as it can, Documentation/admin-guide/mm/ksm.rst. The
# former values are kept for merging-undo.sh.
ksm=/sys/kernel/mm/ksm
echo "$(cat $ksm/run) $(cat $ksm/pages_to_scan) $(cat $ksm/sleep_millisecs)" >/tmp/fault-merging || exit 1
echo 50000 >$ksm/pages_to_scan && echo 1 >$ksm/sleep_millisecs && echo 1 >$ksm/run || exit 1
echo ready
while :; do sleep 1; done
