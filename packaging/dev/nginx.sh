#!/usr/bin/env bash
# Prints the path of an nginx with HTTP/3, which Debian 12's has not. If it is not there yet,
# the script builds it into ~/.cache/holdfast-test from the source package of a later Debian,
# from the mirror that apt on this host uses, which takes 40 s of one core.
set -euo pipefail
script=$(readlink -f "$0")
. "$(dirname "$0")/lib.sh"

suite=trixie
keys=/usr/share/keyrings/debian-archive-keyring.gpg
cache=${XDG_CACHE_HOME:-$HOME/.cache}/holdfast-test
dir=$cache/nginx-$suite-$(sha256sum "$script" | cut -c 1-12)
mkdir -p "$cache"
exec 9>"$cache/nginx.lock"
flock 9
if [[ ! -e $dir ]]; then
  need gcc=gcc make=make >&2
  [[ -e /usr/include/openssl/ssl.h ]] || need openssl-headers=libssl-dev >&2
  # shellcheck disable=SC2016 # apt-get expands it
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Label: Debian' 'Created-By: Packages' | head -n 1)
  [[ -n $mirror ]] || die "apt on this host has no mirror of Debian" "run apt-get update"
  work=$(mktemp -d -p "$cache")
  trap 'rm -rf "$work"' EXIT
  mkdir -p "$work"/lists/partial "$work"/archives/partial
  echo "deb-src [signed-by=$keys] $mirror $suite main" >"$work/sources.list"
  apt=(apt-get -qq -o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work" -o APT::Sandbox::User=root)
  (
    cd "$work"
    "${apt[@]}" update
    "${apt[@]}" source --download-only --tar-only nginx # Debian's patches are not needed
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
