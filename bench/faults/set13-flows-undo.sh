#!/bin/sh
# The entries end by themselves within 30 s; the rule is there only if the namespace did not track.
iptables -w -D OUTPUT -m conntrack --ctstate INVALID -m comment --comment set13 -j ACCEPT 2>/dev/null
exit 0
