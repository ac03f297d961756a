#!/usr/bin/env bash
# Installs the peers of the doctor's examination (docs/doctor-exam.md), and prints the
# directory of node-problem-detector: the program, and config with its configuration files.
# If it does not exist yet, the script builds it from its repository at a fixed tag, which
# takes two minutes of one core. NPD_REPOSITORY may name a clone on this host. Netdata comes
# from Debian; its service is not started. With the argument npd, Netdata is not installed.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

repository=${NPD_REPOSITORY:-https://github.com/kubernetes/node-problem-detector}
tag=v1.35.2
cache=${XDG_CACHE_HOME:-$HOME/.cache}/holdfast-test
dir=$cache/node-problem-detector-$tag
[[ ${1:-} = npd ]] || need netdata=netdata curl=curl jq=jq >&2
mkdir -p "$cache"
exec 9>"$cache/npd.lock"
flock 9
if [[ ! -e $dir ]]; then
  command -v go >/dev/null || die "Go is not installed" "install the version that go.mod names"
  need git=git >&2
  work=$(mktemp -d -p "$cache")
  trap 'rm -rf "$work"' EXIT
  git -c advice.detachedHead=false clone -q --depth 1 --branch "$tag" "$repository" "$work/source" >&2
  mkdir "$work/done"
  # Without the tag journald, it needs neither cgo nor libsystemd.
  (cd "$work/source" && CGO_ENABLED=0 GOFLAGS='' chrt -i 0 go build -mod=vendor -p 2 -trimpath \
    -ldflags "-s -w -X k8s.io/node-problem-detector/pkg/version.version=$tag" \
    -o "$work/done/node-problem-detector" ./cmd/nodeproblemdetector) >&2
  mv "$work/source/config" "$work/source/LICENSE" "$work/done/"
  mv "$work/done" "$dir"
fi
printf '%s\n' "$dir"
