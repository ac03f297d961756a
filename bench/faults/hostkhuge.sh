#!/bin/sh
# A wrong setting of the host: khugepaged never sleeps. hostkhugeundo.sh restores it.
d=/sys/kernel/mm/transparent_hugepage/khugepaged
[ -e /dev/shm/set5-khugepaged ] || for f in scan_sleep_millisecs pages_to_scan; do echo "$f $(cat $d/$f)"; done >/dev/shm/set5-khugepaged
echo 0 >$d/scan_sleep_millisecs
echo 65536 >$d/pages_to_scan
echo ready
while :; do sleep 60; done
