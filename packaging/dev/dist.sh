#!/usr/bin/env bash
# Builds a release into dist/: for each architecture the static programs holdfast and
# holdfast-bench, a Debian package of each, the container image of holdfast, and
# SHA256SUMS. The same commit gives the same bytes on every host.
#   dist.sh [ARCH…]   default: amd64 arm64
# DIST names another directory, which must be empty. VERSION sets the version. COMPRESSION
# is that of the packages: xz (default), gzip, or none, which is fastest. PROGRAMS are built:
# "holdfast holdfast-bench" (default) or "holdfast".
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
mkdir -p "$dist"/generated/{man/holdfast,man/holdfast-bench,completions}

# compile PROGRAM ARCH OUT
compile() {
  GOFLAGS=-buildvcs=false GOARCH=$2 packaging/dev/build.sh "$3" "$version" "$1"
}

arches=("$@")
read -ra programs <<<"${PROGRAMS:-holdfast holdfast-bench}"
[[ $# -gt 0 ]] || arches=(amd64 arm64)
here=$(go env GOHOSTARCH)
for program in "${programs[@]}"; do
  TAGS=manpages compile "$program" "$here" "$dist/generated/$program"
  "$dist/generated/$program" man "$dist/generated/man/$program"
done
rm "$dist/generated/man/holdfast/holdfast-bench.1" # the page of this name is holdfast-bench's own
for shell in bash:holdfast zsh:_holdfast fish:holdfast.fish; do
  "$dist/generated/holdfast" completion "${shell%%:*}" >"$dist/generated/completions/${shell#*:}"
done
CGO_ENABLED=0 GOFLAGS="$goflags" go -C packaging/deb build -buildvcs=false -o "$dist/generated/deb" .
CGO_ENABLED=0 GOFLAGS="$goflags" go build -buildvcs=false -o "$dist/generated/image" ./packaging/image
for arch in "${arches[@]}"; do
  for program in "${programs[@]}"; do
    out=$dist/$program-linux-$arch
    compile "$program" "$arch" "$out"
    "$dist/generated/deb" -package "$program" -version "$version" -arch "$arch" -compression "${COMPRESSION:-xz}" -source . -binary "$out" -generated "$dist/generated" -out "$dist" -epoch "$SOURCE_DATE_EPOCH"
  done
  "$dist/generated/image" -version "$version" -arch "$arch" -binary "$dist/holdfast-linux-$arch" -out "$dist/holdfast-image-$arch.tar" -epoch "$SOURCE_DATE_EPOCH"
done
rm -r "$dist/generated"
(cd "$dist" && sha256sum -- * >.sums && mv .sums SHA256SUMS)
