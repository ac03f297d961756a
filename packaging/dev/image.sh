#!/usr/bin/env bash
# Builds holdfast-demo:latest from the demo's server and busybox, without a base
# image: nothing is pulled. The same sources give the same layer. If the image
# exists already, the script does not change it.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

need docker=docker.io
# Debian's package busybox is dynamically linked to libraries that the image lacks.
dpkg-query -W -f='${db:Status-Status}\n' busybox-static 2>/dev/null | grep -qx installed ||
  need static-busybox=busybox-static
engine_answers || die "no container engine answers" "make up starts one; or set DOCKER_HOST"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
umask 022
mkdir -p "$root"/{bin,dev,etc,proc,root,sys,usr/bin}
mkdir -m 1777 "$root/tmp"
CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags='-s -w' -o "$root/bin/holdfast-demo" ./demo
cp "$(command -v busybox)" "$root/bin/busybox"
busybox --list | while read -r applet; do
  [[ -e $root/bin/$applet ]] || ln -s busybox "$root/bin/$applet"
done
ln -s /bin/env "$root/usr/bin/env"
echo 'root:x:0:0:root:/root:/bin/sh' >"$root/etc/passwd"
echo 'root:x:0:' >"$root/etc/group"
tar -C "$root" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --format=ustar -cf "$work/image.tar" .

sum=$(sha256sum "$work/image.tar" | cut -d' ' -f1)
have=$(engine image inspect -f '{{index .Config.Labels "holdfast.demo.sum"}}' holdfast-demo:latest 2>/dev/null || true)
if [[ $have = "$sum" ]]; then
  say "image holdfast-demo:latest is up to date"
  exit
fi
engine import --change 'CMD ["/bin/holdfast-demo"]' --change 'EXPOSE 8080' \
  --change 'ENV PATH=/bin:/usr/bin HOME=/root' --change 'WORKDIR /root' \
  --change "LABEL holdfast.demo.sum=$sum" - holdfast-demo:latest <"$work/image.tar" >/dev/null
say "image holdfast-demo:latest is built"
