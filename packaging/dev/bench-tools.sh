#!/usr/bin/env bash
# Installs all that the experiments of holdfast-bench need: their peers, the engine, Envoy,
# and gVisor's runsc and a kube-apiserver, which are built here the first time.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

command -v go >/dev/null || die "Go is not installed" "install the version that go.mod names"
need nginx=nginx-light haproxy=haproxy iptables=iptables docker=docker.io dockerd=docker.io \
  docker-compose=docker-compose docker-registry=docker-registry perf=linux-perf mkfs.ext4=e2fsprogs
# bench restarts: servers and their load tools. A missing one is left out there.
need pgbench=postgresql mariadbd=mariadb-server-core mariadb-admin=mariadb-client sysbench=sysbench redis-server=redis-server \
  redis-benchmark=redis-tools rabbitmq-server=rabbitmq-server amqp-publish=amqp-tools wrk=wrk h2load=nghttp2-client node=nodejs gunicorn=gunicorn \
  uvicorn=uvicorn java=default-jre-headless /usr/share/tomcat10/bin/catalina.sh=tomcat10-common
packaging/dev/envoy.sh
packaging/dev/runsc.sh # bench move
packaging/dev/kube.sh # bench kubernetes; prints the program's path
say "installed for holdfast bench: $(nginx -v 2>&1), $(haproxy -v | head -n 1), $(docker --version), $(docker-compose --version)"
