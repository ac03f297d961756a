#!/bin/sh
rm -rf /var/tmp/set6-unpack
