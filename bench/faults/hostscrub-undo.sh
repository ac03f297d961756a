#!/bin/sh
rm -f /var/tmp/set8-scrub.img
