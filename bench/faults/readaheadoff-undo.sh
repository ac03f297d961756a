#!/bin/sh
[ -f /var/tmp/set8-readahead.old ] || exit 0
while read f old; do echo $old >$f; done </var/tmp/set8-readahead.old
rm -f /var/tmp/set8-readahead.old
