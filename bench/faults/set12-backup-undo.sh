#!/bin/sh
rm -rf /var/tmp/set12-backup
