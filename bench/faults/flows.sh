#!/bin/sh
# Tracks connections in its own network namespace and makes COUNT of them.
# Documentation/networking/nf_conntrack-sysctl.rst: nf_conntrack_max.
set -e
iptables -A INPUT -m conntrack --ctstate NEW -j ACCEPT
exec "$FAULT/leak" flow "$1" 40000
