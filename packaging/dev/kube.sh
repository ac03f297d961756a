#!/usr/bin/env bash
# Prints the path of a part of Kubernetes for tests: kube-apiserver, or the one that is
# named (kubelet). It is built where it is not there yet: some seven minutes of one core.
# Several may ask at a time; one builds, at idle priority, and the others wait for it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../test/kube/apiserver"

part=${1:-kube-apiserver}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/holdfast-test
version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
binary=$cache/$part-$version
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
if [[ ! -x $binary ]]; then
  # As the tests of test/kubedrain are built, so that both share the compiled packages.
  CGO_ENABLED=0 chrt -i 0 go build -p 2 -ldflags '-s -w' -o "$binary.new" "k8s.io/kubernetes/cmd/$part" >&2
  mv "$binary.new" "$binary"
fi
printf '%s\n' "$binary"
