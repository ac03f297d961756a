#!/bin/sh
# Removes what the nightly backup wrote.
rm -rf /var/tmp/set17-nightly.*
