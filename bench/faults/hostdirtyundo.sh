#!/bin/sh
# Restores the settings that hostdirty.sh has changed.
[ -e /dev/shm/set5-dirty ] || exit 0
while read -r f v; do echo "$v" >"/proc/sys/vm/$f"; done </dev/shm/set5-dirty
rm -f /dev/shm/set5-dirty
