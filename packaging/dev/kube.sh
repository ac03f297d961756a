#!/usr/bin/env bash
# Prints the path of a Kubernetes program for tests: kube-apiserver, or the program named
# in the argument (kubelet). If it does not exist yet, the script builds it, which takes
# about six minutes of one core. Concurrent calls are safe: one builds, and the others wait.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd test/kube/apiserver

part=${1:-kube-apiserver}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/holdfast-test
version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
binary=$cache/$part-$version
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
if [[ ! -x $binary ]]; then
  # The same flags as for the tests of test/kubedrain, so that both share compiled packages.
  CGO_ENABLED=0 GOFLAGS="$goflags" go build -p 2 -ldflags '-s -w' -o "$binary.new" "k8s.io/kubernetes/cmd/$part" >&2
  mv "$binary.new" "$binary"
fi
printf '%s\n' "$binary"
