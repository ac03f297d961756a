#!/bin/sh
# The host has the kernel's default of inotify instances for each user, 128, and it was not raised for many pods.
old=$(cat /proc/sys/fs/inotify/max_user_instances) || exit 1
[ -e /var/tmp/max_user_instances.before ] || echo "$old" >/var/tmp/max_user_instances.before
echo 128 >/proc/sys/fs/inotify/max_user_instances || exit 1
echo ready
while :; do sleep 100; done
