#!/usr/bin/env bash
# Prints the path of an nginx with HTTP/3, which Debian 12's has not. If it is not there yet,
# the script builds it into ~/.cache/holdfast-test from the source package of a later Debian,
# from the mirror that apt on this host uses, which takes 40 s of one core.
set -euo pipefail
script=$(readlink -f "$0")
. "$(dirname "$0")/lib.sh"

suite=trixie
cache=${XDG_CACHE_HOME:-$HOME/.cache}/holdfast-test
dir=$cache/nginx-$suite-$(sha256sum "$script" | cut -c 1-12)
mkdir -p "$cache"
exec 9>"$cache/nginx.lock"
flock 9
if [[ ! -e $dir ]]; then
  need gcc=gcc make=make >&2
  [[ -e /usr/include/openssl/ssl.h ]] || need openssl-headers=libssl-dev >&2
  work=$(mktemp -d -p "$cache")
  trap 'rm -rf "$work"' EXIT
  apt_sources "$work" deb-src $suite
  (
    cd "$work"
    apt_in "$work" update
    apt_in "$work" source --download-only --tar-only nginx # Debian's patches are not needed
    mkdir source
    tar -xf nginx_*.orig.tar.gz -C source --strip-components=1
    cd source
    # OpenSSL 3.0 has no interface for QUIC; nginx then uses its own layer.
    chrt -i 0 ./configure --with-debug --with-http_ssl_module --with-http_v3_module --with-cc-opt=-O1 \
      --without-http_rewrite_module --without-http_gzip_module
    chrt -i 0 make
  ) >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; die "nginx could not be built" "see the output above"; }
  mkdir "$work/done"
  mv "$work/source/objs/nginx" "$work/done/nginx"
  mv "$work/done" "$dir"
fi
echo "$dir/nginx"
