#!/bin/sh
# Restores what setinstances.sh has changed.
if [ -s /var/tmp/max_user_instances.before ]; then
	cat /var/tmp/max_user_instances.before >/proc/sys/fs/inotify/max_user_instances
	rm -f /var/tmp/max_user_instances.before
fi
exit 0
