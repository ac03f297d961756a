#!/usr/bin/env bash
# Builds the files of a release into dist/: for each architecture the static program, the
# Debian package and the container image, and SHA256SUMS. The same commit gives the same
# bytes on every machine.
#   dist.sh [ARCH…]   default: amd64 arm64
# DIST names another directory, which has to be empty; VERSION sets the version.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

command -v go >/dev/null || die "Go is not installed" "install the version that go.mod names"
# Without a tag the version is 0.0.0 and the number of commits, so that packages sort.
version=${VERSION:-$(git describe --tags --dirty 2>/dev/null || echo "0.0.0-$(git rev-list --count HEAD)-g$(git describe --always --dirty)")}
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || echo 0)
export SOURCE_DATE_EPOCH
umask 022
if [[ -n ${DIST:-} ]]; then
  dist=$DIST
  [[ -z $(ls -A "$dist" 2>/dev/null) ]] || die "$dist is not empty" "name a new directory"
else
  dist=$PWD/dist
  rm -rf "$dist"
fi
mkdir -p "$dist"/generated/{man,completions}

# compile ARCH OUT builds the static program of an architecture.
compile() {
  CGO_ENABLED=0 GOOS=linux GOARCH=$1 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$version" -o "$2" ./cmd/holdfast
}

arches=("$@")
[[ $# -gt 0 ]] || arches=(amd64 arm64)
here=$(go env GOHOSTARCH)
compile "$here" "$dist/generated/holdfast"
program=$dist/generated/holdfast
"$program" man "$dist/generated/man"
"$program" completion bash >"$dist/generated/completions/holdfast"
"$program" completion zsh >"$dist/generated/completions/_holdfast"
"$program" completion fish >"$dist/generated/completions/holdfast.fish"
go -C packaging/deb build -trimpath -buildvcs=false -o "$dist/generated/deb" .
go build -trimpath -buildvcs=false -o "$dist/generated/image" ./packaging/image
for arch in "${arches[@]}"; do
  out=$dist/holdfast-linux-$arch
  if [[ $arch = "$here" ]]; then cp "$program" "$out"; else compile "$arch" "$out"; fi
  "$dist/generated/deb" -version "$version" -arch "$arch" -source . -binary "$out" -generated "$dist/generated" -out "$dist" -epoch "$SOURCE_DATE_EPOCH"
  "$dist/generated/image" -version "$version" -arch "$arch" -binary "$out" -out "$dist/holdfast-image-$arch.tar" -epoch "$SOURCE_DATE_EPOCH"
done
rm -r "$dist/generated"
(cd "$dist" && sha256sum -- * >.sums && mv .sums SHA256SUMS)
