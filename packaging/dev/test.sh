#!/usr/bin/env bash
# Runs all checks that a change has to pass. The script installs the packages that the
# tests need; the tests start their own engines, stores and proxies.
#   test.sh          all tests; those of packages with the race detector
#   test.sh short    tests that need no engine, in less than two minutes
#   test.sh long     all cases of the tests that the first form runs in part, and whole programs
#                    with the race detector: two or three hours
set -euo pipefail
. "$(dirname "$0")/lib.sh"

command -v go >/dev/null || die "Go is not installed" "install the version that go.mod names"
# Also for tests with the race detector. Without a symbol table a linker needs a tenth to a fifth less CPU time.
export GOFLAGS="$goflags -ldflags=-s"
if [[ ${1:-} = short ]]; then
  # With the settings of lint.sh each dependency is compiled once.
  export CGO_ENABLED=0
  go vet ./...
  # Most tests wait; more of them at once keep the CPUs busy.
  go run ./packaging/dev/testsum -- go test -vet=off -short -p 5 -timeout 5m -json ./...
  exit
fi
root_is_possible
need docker=docker.io dockerd=docker.io busybox=busybox-static nginx=nginx-light python3=python3 curl=curl \
  haproxy=haproxy iptables=iptables apparmor_parser=apparmor \
  chromium=chromium gcc=gcc g++=g++ musl-gcc=musl-tools shellcheck=shellcheck git=git \
  perf=linux-perf dbus-daemon=dbus-daemon qemu-system-x86_64=qemu-system-x86 \
  mariadbd=mariadb-server-core mariadb=mariadb-client-core redis-server=redis-server pg_ctlcluster=postgresql docker-registry=docker-registry docker-compose=docker-compose \
  promtool=prometheus systemd-analyze=systemd mkfs.ext4=e2fsprogs mkfs.xfs=xfsprogs mkfs.btrfs=btrfs-progs fuse-overlayfs=fuse-overlayfs h2load=nghttp2-client
[[ -e /usr/include/stdio.h ]] || need libc-headers=libc6-dev # for the race detector
[[ -e /usr/include/glog/logging.h ]] || need glog-headers=libgoogle-glog-dev
# By default a program with the race detector waits for one second at its exit for
# remaining goroutines, and each package starts several such programs.
export GORACE="atexit_sleep_ms=10 ${GORACE:-}"
# Compilers, linkers and engines are short-lived or small: with rarer garbage collection they
# need about an eighth less CPU time.
export GOGC=${GOGC:-400}
packaging/dev/runsc.sh & # in parallel with the steps before the tests
runsc=$!
# Packages whose tests spend most of their time in child processes, or in an etcd.
children=(./internal/hosts/protect ./internal/hosts/protect/install ./internal/hosts/protect/builtin ./internal/hosts/job
  ./internal/control/cli ./internal/sessions/guardian ./internal/sessions/kill ./internal/platform/runsc ./internal/platform/store/etcd)
# Packages for which alone hundreds of others would be compiled with the race detector.
single=(./cmd/... ./demo ./internal/archtest ./internal/hosts/kube/cri)
if [[ ${1:-} = long ]]; then
  wait $runsc
  need lintian=lintian rustc=rustc node=nodejs caddy=caddy jcmd=default-jdk-headless
  mapfile -t packages < <({ grep -rl --include='*_test.go' --exclude-dir=quic 'labtest\.\(Need\)\?Long(' . | xargs -n 1 dirname
    go list -f '{{.Dir}}' ./test/... ./bench/... ./internal/hosts/doctor/... ./internal/platform/engine/... "${children[@]}" "${single[@]}" | sed "s|^$PWD|.|"; } | sort -u)
  go run ./packaging/dev/testsum -- go test -race -timeout 3h -json "${packages[@]}" -long
  env CGO_ENABLED=0 go test -C test/quic -vet=off -timeout 20m ./... -long
  # Run the tests that support both engines on containerd. Then run them, and the tests
  # for containerd only, on the newest containerd.
  mapfile -t packages < <(grep -rlE --include='*_test.go' 'labtest\.(Either|OnContainerd)\(' . | xargs -n 1 dirname | sort -u)
  go run ./packaging/dev/testsum -- go test -race -timeout 3h -json "${packages[@]}" -on-containerd
  newest=$(packaging/dev/containerd.sh)
  go run ./packaging/dev/testsum -- go test -race -timeout 3h -json "${packages[@]}" ./internal/platform/engine/containerd -on-containerd -containerd "$newest"
  go run ./packaging/dev/testsum -- go test -race -timeout 3h -json -run Containerd ./test/gc -containerd "$newest"
  go run ./packaging/dev/testsum -- go test -race -timeout 3h -json -run Interleavings ./test/gc -acts 3600
  # The tests that need the newest Docker.
  moby=$(packaging/dev/moby.sh)
  go run ./packaging/dev/testsum -- go test -race -timeout 3h -json -run 'UpgradedUnder|LayersThatAreWanted|AsksContainerd' ./test/agent ./test/gc -long -dockerd "$moby"
  exit
fi
# Build the API server for the Kubernetes tests in the background, if it does not exist yet. The
# build continues if a later step fails, and its result is cached.
packaging/dev/kube.sh >/dev/null &
packaging/dev/lint.sh
env CGO_ENABLED=0 go -C packaging/deb test -vet=off ./... # a separate module
wait $runsc
# lint.sh has already run go vet on the tests.
tests=(go test -vet=off -timeout 25m -json)
# The race detector checks the packages. The tests below test/ and bench/ start whole programs
# on real engines. They run without it, because it doubles their time; test-long runs them with
# it. So do the tests that load a kernel, those of the engines' clients, children and single.
plain=(env CGO_ENABLED=0 "${tests[@]}")
# Five queues run in parallel, because most tests wait much of their time. The longest begin first.
# That of test/agent is divided, because it alone would take as long as all others. The tests with
# a Kubernetes API server are last, because its build may still be in progress. The command line
# is tested as in the programs that a release is made with, which write manual pages.
slow=(./internal/sessions/session ./internal/sessions/gateway ./internal/control/api/... ./internal/control/dashboard
  ./internal/control/config)
kernel=(./internal/hosts/doctor ./internal/hosts/doctor/cure ./internal/hosts/doctor/profile ./internal/platform/engine/...)
whole=(./test/gc ./test/doctor ./test/e2e ./test/dashboard ./test/kube/...)
mapfile -t others < <(go list ./... | grep -vxFf <(go list "${slow[@]}" "${children[@]}" "${single[@]}" "${kernel[@]}" ./test/... ./bench/...))
mapfile -t rest < <(go list ./test/... ./bench/... "${single[@]}" | grep -vxFf <(go list ./test/agent ./test/deb ./test/fleet "${whole[@]}"))
go run ./packaging/dev/testsum -again -at-once 5 -- "${plain[@]}" ./test/agent -run '^Test[A-M]' \
  -- "${plain[@]}" ./test/agent -skip '^Test[A-M]' \
  -- "${tests[@]}" -race -p 1 "${slow[@]}" \
  -- "${plain[@]}" -p 1 ./test/deb ./test/fleet \
  -- "${plain[@]}" -p 1 "${whole[@]}" \
  -- "${plain[@]}" -tags=grpcnotrace,manpages -p 1 "${children[@]}" \
  -- "${plain[@]}" -p 1 "${kernel[@]}" \
  -- "${plain[@]}" -p 1 "${rest[@]}" \
  -- "${tests[@]}" -race -p 3 "${others[@]}" \
  -- env CGO_ENABLED=0 go test -C test/kubedrain -vet=off -timeout 25m -json ./...
