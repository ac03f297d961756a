#!/usr/bin/env bash
# Prints the directory of the newest dockerd that the Go module proxy has, with the
# programs that it starts, for the tests' flag -dockerd. If it does not exist yet, the
# script builds it, which takes five minutes of one core. The containerd is that of
# containerd.sh. dockerd needs runc 1.2 or later, for time namespaces; it has seccomp if
# libseccomp-dev is installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

module=github.com/moby/moby/v2
version=v2.0.0-beta.24
runc=v1.5.1
containerd=$(packaging/dev/containerd.sh)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/holdfast-test
dir=$cache/moby-$version-runc-$runc
mkdir -p "$cache"
exec 9>"$cache/moby.lock"
flock 9
if [[ ! -e $dir ]]; then
  work=$(mktemp -d -p "$cache")
  trap 'rm -rf "$work"' EXIT
  for program in dockerd docker-proxy; do
    (cd / && CGO_ENABLED=0 GOFLAGS='' GOBIN="$work" chrt -i 0 go install -p 2 \
      -ldflags "-s -w -X $module/dockerversion.Version=${version#v}" "$module/cmd/$program@$version") >&2
  done
  tags=''
  ! pkg-config --exists libseccomp 2>/dev/null || tags=seccomp
  (cd / && CGO_ENABLED=1 GOFLAGS='' GOBIN="$work" chrt -i 0 go install -p 2 -tags "$tags" \
    -ldflags '-s -w' "github.com/opencontainers/runc@$runc") >&2
  chmod 755 "$work"
  mv "$work" "$dir"
fi
ln -sf "$containerd"/* "$dir/"
printf '%s\n' "$dir"
