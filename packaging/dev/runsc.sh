#!/usr/bin/env bash
# Builds gVisor's runsc, static and at a fixed version, for the tests and for make up
# RUNSC=1. If it exists already at this version, the script does not build it again. The
# first build takes minutes of CPU time, at idle priority.
#   runsc.sh [FILE]    default: the path at which the tests look for it
set -euo pipefail
. "$(dirname "$0")/lib.sh"

version=v0.0.0-20260905035102-160fafc42237
cached=${XDG_CACHE_HOME:-$HOME/.cache}/holdfast-test/runsc/runsc
file=${1:-$cached}
wanted() { go version -m "$1" 2>/dev/null | grep -q "gvisor.dev/gvisor[[:space:]]$version"; }
if wanted "$file"; then
  exit
fi
mkdir -p "$(dirname "$file")"
if wanted "$cached"; then
  cp "$cached" "$file.new"
  mv "$file.new" "$file"
  exit
fi
work=$(mktemp -d -p "$(dirname "$file")")
trap 'rm -rf "$work"' EXIT
idle=()
! command -v chrt >/dev/null || idle=(chrt -i 0)
say "building runsc; the first build takes some minutes"
# A dynamically linked runsc cannot re-execute itself in its own sandbox.
(cd / && CGO_ENABLED=0 GOFLAGS="$goflags" GOBIN="$work" "${idle[@]}" go install \
  -ldflags "-s -w -X gvisor.dev/gvisor/runsc/version.version=$version" "gvisor.dev/gvisor/runsc@$version")
mv "$work/runsc" "$file"
