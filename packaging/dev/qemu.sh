#!/usr/bin/env bash
# Prints a directory with the qemu of Debian's backports, unpacked and not installed. Since qemu 8.1
# a thread for each CPU is correct for kernels that change their code: a page is locked while it is
# translated. The first call downloads 40 MB. Concurrent calls are safe: one unpacks, and the others wait.
set -euo pipefail
script=$(readlink -f "$0")
. "$(dirname "$0")/lib.sh"

suite=bookworm-backports
packages=(qemu-system-x86 qemu-system-common qemu-system-data)

cache=${XDG_CACHE_HOME:-$HOME/.cache}/holdfast-test
dir=$cache/qemu-$suite-$(sha256sum "$script" | cut -c 1-12)
mkdir -p "$cache"
exec 9>"$cache/qemu.lock"
flock 9
if [[ -e $dir ]]; then
  printf '%s\n' "$dir"
  exit
fi
# Debian 12's own qemu has the libraries, the firmware and the boot ROMs.
need qemu-system-x86_64=qemu-system-x86 >&2
[[ -e /usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1 ]] || install_packages libfaketime >&2
work=$(mktemp -d -p "$cache")
trap 'rm -rf "$work"' EXIT
mkdir "$work/debs" "$work/root"
apt_sources "$work" deb $suite
{ apt_in "$work" update && cd "$work/debs" && apt_in "$work" download "${packages[@]/%//$suite}"; } >"$work/log" 2>&1 ||
  { tail -n 20 "$work/log" >&2; die "could not download qemu of $suite" "see the output of apt-get above"; }
for deb in "$work"/debs/*.deb; do
  dpkg -x "$deb" "$work/root"
done
absent=$(ldd "$work/root/usr/bin/qemu-system-x86_64" | grep 'not found' || true)
[[ -z $absent ]] || die "libraries of qemu are not installed: $absent" "install them with apt-get"
chmod 755 "$work/root"
mv "$work/root" "$dir"
printf '%s\n' "$dir"
