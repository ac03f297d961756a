#!/bin/sh
# Removes the logs of hostwal.
rm -f /var/tmp/control-plane-wal/wal-*
rmdir /var/tmp/control-plane-wal 2>/dev/null
exit 0
