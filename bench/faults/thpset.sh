#!/bin/sh
# Transparent huge pages for all memory, with reclaim and compaction at the fault. thpreset.sh undoes it.
t=/sys/kernel/mm/transparent_hugepage
s=/tmp/hf7-thp.state
[ -e "$s" ] || sed 's/.*\[\(.*\)\].*/\1/' "$t/enabled" "$t/defrag" >"$s" || exit 1
echo always >"$t/enabled" && echo always >"$t/defrag" || exit 1
echo ready
while :; do sleep 5; done
