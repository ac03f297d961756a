#!/usr/bin/env bash
# Prints the directory of a whole Debian for the virtual machines of test/hosts: disk.img,
# vmlinuz, initrd.img, and key, which logs in as root. If it does not exist yet, the script
# makes it with debootstrap, from the mirror that apt on this host uses: about 1 GB, and some
# minutes. Concurrent calls are safe: one makes it, and the others wait.
#   hosts.sh [SUITE]   default: bookworm
set -euo pipefail
script=$(readlink -f "$0")
. "$(dirname "$0")/lib.sh"

suite=${1:-bookworm}
packages=(systemd systemd-sysv dbus dbus-user-session libpam-systemd apparmor ca-certificates curl iproute2 iptables nftables
  openssh-server docker.io haproxy busybox-static tini systemd-oomd linux-image-cloud-amd64)
more=(podman uidmap slirp4netns rootlesskit) # debootstrap does not resolve their alternatives
[[ $suite = bookworm ]] || packages+=(docker-cli)

cache=${XDG_CACHE_HOME:-$HOME/.cache}/holdfast-test
# The name is that of the list and of the steps below.
dir=$cache/hosts-$suite-$(sha256sum "$script" | cut -c 1-12)
mkdir -p "$cache"
exec 9>"$cache/hosts-$suite.lock"
flock 9
if [[ -e $dir ]]; then
  printf '%s\n' "$dir"
  exit
fi
[[ $(id -u) = 0 ]] || die "making a Debian needs root" "run this as root once; the result is cached"
need debootstrap=debootstrap qemu-img=qemu-utils ssh-keygen=openssh-client mkfs.ext4=e2fsprogs >&2
mirror=$(debian_mirror)
work=$(mktemp -d -p "$cache")
trap 'rm -rf "$work"' EXIT
root=$work/root
# The second stage runs in a mount namespace of its own, so that its mounts end with it.
unshare --mount debootstrap --variant=minbase --include="$(IFS=,; echo "${packages[*]}")" "$suite" "$root" "$mirror" >"$work/log" 2>&1 ||
  { tail -n 20 "$work/log" >&2; die "debootstrap failed" "see its output above"; }
chroot "$root" env DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends "${more[@]}" >"$work/log" 2>&1 ||
  { tail -n 20 "$work/log" >&2; die "apt-get install failed" "see its output above"; }

ssh-keygen -q -t ed25519 -N '' -C test -f "$work/key"
install -d -m 700 "$root/root/.ssh"
install -m 600 "$work/key.pub" "$root/root/.ssh/authorized_keys"
echo host >"$root/etc/hostname"
echo '127.0.0.1 localhost host' >"$root/etc/hosts"
echo '/dev/vda / ext4 defaults 0 1' >"$root/etc/fstab"
printf '[Match]\nName=en*\n[Network]\nDHCP=yes\n' >"$root/etc/systemd/network/user.network"
echo 'nameserver 10.0.2.3' >"$root/etc/resolv.conf"
mkdir -p "$root/var/log/journal" # the journal of an earlier boot stays
chroot "$root" systemctl enable --quiet systemd-networkd
chroot "$root" systemctl disable --quiet haproxy systemd-oomd podman.socket podman podman-auto-update podman-auto-update.timer podman-restart \
  apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer e2scrub_reap
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
cp -L "$root/vmlinuz" "$work/vmlinuz"
cp -L "$root/initrd.img" "$work/initrd.img"
truncate -s 12G "$work/disk.img"
mkfs.ext4 -q -d "$root" "$work/disk.img"
rm -r "$root" "$work/log"
chmod 755 "$work"
mv "$work" "$dir"
printf '%s\n' "$dir"
