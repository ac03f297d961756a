#!/bin/sh
# A backup script copies a device one byte at a time, dd(1) with bs=1: two system calls for each byte.
echo ready
exec dd if=/dev/zero of=/dev/null bs=1
