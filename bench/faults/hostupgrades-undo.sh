#!/bin/sh
rm -rf /var/tmp/set8-upgrades
