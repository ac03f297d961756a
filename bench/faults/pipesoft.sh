#!/bin/sh
# A hardening guide has set the pages of pipes that a user may have without privileges to one, pipe(7): pipe-user-pages-soft.
# Each new pipe of a container (without CAP_SYS_RESOURCE) has two pages instead of sixteen.
f=/proc/sys/fs/pipe-user-pages-soft
[ -e /tmp/h11-pipe.old ] || cat $f >/tmp/h11-pipe.old
echo 1 >$f || exit 1
echo ready
while :; do sleep 60; done
