#!/usr/bin/env bash
# Prints the directory of a containerd of the client version in go.mod, the newest one,
# for the tests' flag -containerd. If it does not exist yet, the script builds it without
# the CRI plugin, which takes a few minutes of one core. It uses the installed runc.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

module=github.com/containerd/containerd/v2
version=$(go list -m -f '{{.Version}}' "$module")
cache=${XDG_CACHE_HOME:-$HOME/.cache}/holdfast-test
dir=$cache/containerd-$version
mkdir -p "$cache"
exec 9>"$cache/containerd.lock"
flock 9
if [[ ! -e $dir ]]; then
  work=$(mktemp -d -p "$cache")
  trap 'rm -rf "$work"' EXIT
  for program in containerd containerd-shim-runc-v2; do
    (cd / && CGO_ENABLED=0 GOFLAGS='' GOBIN="$work" chrt -i 0 go install -p 2 -tags no_cri \
      -ldflags "-s -w -X $module/version.Version=$version" "$module/cmd/$program@$version") >&2
  done
  chmod 755 "$work"
  mv "$work" "$dir"
fi
printf '%s\n' "$dir"
