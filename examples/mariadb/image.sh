#!/usr/bin/env bash
# Builds mariadb:local from Debian's packages on this host: the server, its
# client, their shared libraries and a shell. Nothing is pulled.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../packaging/dev/lib.sh"

need mariadbd=mariadb-server-core mariadb=mariadb-client-core busybox=busybox-static docker=docker.io
engine_answers || die "no container engine answers" "start Docker, or set DOCKER_HOST"

here=$PWD/examples/mariadb
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
umask 022
mkdir -p "$root"/{bin,data,etc/mysql,usr/share}
mkdir -m 1777 "$root/tmp"

# with_libraries PROGRAM… copies programs and their shared libraries into the image, to the
# same paths as on this host.
with_libraries() {
  local program
  for program; do
    cp -L --parents "$program" "$root"
    ldd "$program" | grep -o '/[^ ]*' | while read -r lib; do cp -L --parents "$lib" "$root"; done
  done
}
with_libraries /usr/sbin/mariadbd /usr/bin/mariadb /usr/bin/my_print_defaults
cp --parents /usr/bin/mariadb-install-db "$root"
cp -r /usr/share/mysql "$root/usr/share/"

cp "$(command -v busybox)" "$root/bin/busybox"
for applet in $(busybox --list); do
  [[ -e $root/bin/$applet ]] || ln -s busybox "$root/bin/$applet"
done
install -m 755 "$here/create" "$here/recover" "$root/bin/"
install -m 644 "$here/my.cnf" "$root/etc/mysql/my.cnf"
echo 'mysql:x:999:999::/data:/bin/sh' >"$root/etc/passwd"
echo 'mysql:x:999:' >"$root/etc/group"

tar -C "$root" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf - . |
  engine import --change 'USER 999:999' --change 'CMD ["mariadbd"]' --change 'EXPOSE 3306' \
    --change 'ENV PATH=/bin:/usr/bin:/usr/sbin' --change 'WORKDIR /data' - mariadb:local >/dev/null
say "image mariadb:local is built, $(du -sm "$root" | cut -f1) MB: $(mariadbd --version)"
