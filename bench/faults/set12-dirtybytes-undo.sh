#!/bin/sh
[ -s /tmp/set12-dirtybytes ] || exit 0
{ read -r ratio; read -r bratio; read -r bytes; read -r bbytes; } </tmp/set12-dirtybytes
if [ "$bytes" != 0 ]; then echo "$bytes" >/proc/sys/vm/dirty_bytes; else echo "$ratio" >/proc/sys/vm/dirty_ratio; fi
if [ "$bbytes" != 0 ]; then echo "$bbytes" >/proc/sys/vm/dirty_background_bytes; else echo "$bratio" >/proc/sys/vm/dirty_background_ratio; fi
rm -f /tmp/set12-dirtybytes
