#!/usr/bin/env bash
# Builds static programs of cmd/ for a release.
#   build.sh OUT VERSION PROGRAM…   OUT is a file, or a directory with a slash at its end
# GOARCH names another architecture. TAGS adds build tags, separated by commas.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

out=$1 version=$2
shift 2
# holdfast is compiled without inlining, except in the packages through which boots, requests,
# pulls and the observation of the host pass, and where it makes the program smaller (OpenTelemetry).
# docs/adr/size.md has the figures. The linker drops debug information (-s -w), so the compiler makes
# none. The packages with inlining are then those of the tests.
small=("-gcflags=all=-l $nodebug")
for fast in std holdfast/internal/{sessions,platform,agent,hosts/doctor}/... go.etcd.io/... google.golang.org/... golang.org/x/... \
  github.com/{containerd,cilium,klauspost}/... go.opentelemetry.io/...; do
  small+=("-gcflags=$fast=$nodebug")
done
for program; do
  flags=("-gcflags=all=$nodebug")
  [[ $program != holdfast ]] || flags=("${small[@]}")
  CGO_ENABLED=0 GOOS=linux go build -trimpath -tags "grpcnotrace${TAGS:+,$TAGS}" "${flags[@]}" \
    -ldflags "-s -w -X main.version=$version" -o "$out" "./cmd/$program"
done
