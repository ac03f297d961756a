#!/bin/sh
v=16384
[ -s /tmp/h11-pipe.old ] && read -r v </tmp/h11-pipe.old
echo "$v" >/proc/sys/fs/pipe-user-pages-soft
rm -f /tmp/h11-pipe.old
