#!/usr/bin/env bash
# Prints the path of schemathesis, a program that fuzzes an API by its OpenAPI document.
# If it is not there yet, the script installs it from PyPI into ~/.cache/holdfast-test.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

version=4.32.5
cache=${XDG_CACHE_HOME:-$HOME/.cache}/holdfast-test
dir=$cache/schemathesis-$version
mkdir -p "$cache"
exec 9>"$cache/schemathesis.lock"
flock 9
if [[ ! -e $dir/installed ]]; then
  python3 -c 'import ensurepip' 2>/dev/null || die "python3 cannot make a virtual environment" "install python3-venv"
  rm -rf "$dir"
  python3 -m venv "$dir" >&2
  "$dir/bin/pip" install --quiet --disable-pip-version-check "schemathesis==$version" >&2
  touch "$dir/installed"
fi
echo "$dir/bin/schemathesis"
