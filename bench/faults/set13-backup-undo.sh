#!/bin/sh
rm -f /var/tmp/set13-backup-*.gz
