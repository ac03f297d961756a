#!/usr/bin/env bash
# Installs the programs that holdfast bench compares with.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

need nginx=nginx-light haproxy=haproxy iptables=iptables docker=docker.io docker-compose=docker-compose docker-registry=docker-registry
say "installed for holdfast bench: $(nginx -v 2>&1), $(haproxy -v | head -n 1), $(docker --version), $(docker-compose --version)"
