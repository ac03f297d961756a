#!/bin/sh
rm -f /var/tmp/set8-agentd.log
