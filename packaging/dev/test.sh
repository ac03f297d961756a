#!/usr/bin/env bash
# Everything that has to hold before a change goes in. Installs what the tests
# need; they start their engines, stores and proxies themselves.
#   test.sh          all, with the race detector
#   test.sh short    what needs no engine, in under three minutes
#   test.sh long     all cases of the tests of which the first has a part: two or three hours
set -euo pipefail
. "$(dirname "$0")/lib.sh"

command -v go >/dev/null || die "Go is not installed" "install the version that go.mod names"
if [[ ${1:-} = short ]]; then
  go vet ./...
  go run ./packaging/dev/testsum -- go test -short -timeout 5m -json ./...
  exit
fi
root_is_possible
need docker=docker.io dockerd=docker.io busybox=busybox-static nginx=nginx-light python3=python3 curl=curl \
  haproxy=haproxy iptables=iptables apparmor_parser=apparmor \
  chromium=chromium gcc=gcc shellcheck=shellcheck git=git \
  perf=linux-perf dbus-daemon=dbus-daemon qemu-system-x86_64=qemu-system-x86 \
  mariadbd=mariadb-server-core mariadb=mariadb-client-core docker-registry=docker-registry docker-compose=docker-compose \
  promtool=prometheus systemd-analyze=systemd mkfs.ext4=e2fsprogs mkfs.xfs=xfsprogs mkfs.btrfs=btrfs-progs fuse-overlayfs=fuse-overlayfs
[[ -e /usr/include/stdio.h ]] || need libc-headers=libc6-dev # for the race detector
# A program with the race detector waits for a second at its exit, by default, for
# goroutines that are left; each package starts several such programs.
export GORACE="atexit_sleep_ms=10 ${GORACE:-}"
packaging/dev/runsc.sh & # beside what comes before the tests
runsc=$!
if [[ ${1:-} = long ]]; then
  wait $runsc
  need lintian=lintian
  mapfile -t packages < <(grep -rl --include='*_test.go' 'labtest\.Long()' . | xargs -n 1 dirname | sort -u)
  go run ./packaging/dev/testsum -- go test -race -timeout 3h -json "${packages[@]}" -long
  # Those that can run on containerd instead of Docker, there; and on the newest, with
  # those that are about containerd in any case.
  mapfile -t packages < <(grep -rlE --include='*_test.go' 'labtest\.(Either|OnContainerd)\(' . | xargs -n 1 dirname | sort -u)
  go run ./packaging/dev/testsum -- go test -race -timeout 3h -json "${packages[@]}" -on-containerd
  newest=$(packaging/dev/containerd.sh)
  go run ./packaging/dev/testsum -- go test -race -timeout 3h -json "${packages[@]}" ./internal/platform/engine/containerd -on-containerd -containerd "$newest"
  go run ./packaging/dev/testsum -- go test -race -timeout 3h -json -run Containerd ./test/gc -containerd "$newest"
  go run ./packaging/dev/testsum -- go test -race -timeout 3h -json -run Interleavings ./test/gc -acts 3600
  exit
fi
# What the tests of Kubernetes need is built meanwhile, at idle priority, where it is not
# there yet. It goes on where something fails here, and is kept for the next time.
packaging/dev/kube.sh >/dev/null &
packaging/dev/lint.sh
go -C packaging/deb test -vet=off ./... # a module of its own
wait $runsc
# The linter has vetted the tests, too.
tests=(go test -vet=off -timeout 25m -json)
# Two lines side by side that take about as long: test/agent, which waits a lot, and then
# those that need Kubernetes' API server; and all others, those that take longest first,
# so that no CPU idles beside the last of them. What both lines build is built before.
slow=(./test/gc ./test/deb ./internal/hosts/doctor/cure ./test/doctor ./internal/hosts/doctor ./test/fleet ./internal/sessions/session ./bench
  ./test/reload ./internal/sessions/gateway ./internal/platform/engine/docker ./test/pull ./test/spinup ./internal/platform/engine/containerd ./internal/control/dashboard)
mapfile -t others < <(go list ./... | grep -v -e /test/kube -e /test/agent)
go test -race -vet=off -c -o /dev/null ./test/agent
# kubectl's packages have been compiled for the server, without the race detector.
go run ./packaging/dev/testsum -again -at-once 2 -- "${tests[@]}" -race -p "$(nproc)" "${slow[@]}" "${others[@]}" \
  -- "${tests[@]}" -race ./test/agent \
  -- "${tests[@]}" -race -p 1 ./test/kube/... \
  -- env CGO_ENABLED=0 go test -C test/kubedrain -vet=off -timeout 25m -json ./...
