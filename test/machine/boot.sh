#!/bin/sh
# The first process of a test machine (machine.go), in namespaces and cgroups of its own.
# It builds the machine's root file system and then executes systemd.
#   boot.sh EMPTY DATA   an empty directory, and a directory on a disk
set -eu

mount --make-rprivate /
# The machine's changes are in memory. The upper directory of an overlay must not be on an
# overlay itself, nor below the lower directory.
mount -t tmpfs -o mode=755,size=2g machine "$1"
mkdir "$1/changes" "$1/work" "$1/root" "$1/dpkg"
mount -t overlay -o "lowerdir=/,upperdir=$1/changes,workdir=$1/work" machine "$1/root"
root=$1/root
hybrid=$(stat -f -c %T /sys/fs/cgroup)
# One line for each cgroup mount of the host: type, mount point, options.
groups=$(awk '$3 == "cgroup" || $3 == "cgroup2" { print $3, $2, $4 }' /proc/mounts)

cd "$root"
mount -t proc proc proc
# The kernel's settings belong to the host; the network settings to the machine.
for dir in fs kernel vm; do
	mount --bind "proc/sys/$dir" "proc/sys/$dir"
	mount -o remount,bind,ro "proc/sys/$dir"
done
mount -t sysfs sysfs sys
mount -t tracefs tracefs sys/kernel/tracing 2>/dev/null || true
if [ "$hybrid" = tmpfs ]; then
	mount -t tmpfs -o mode=755 cgroups sys/fs/cgroup
fi
# A new mount in the cgroup namespace has the machine's own cgroups as its root.
echo "$groups" | while read -r type at options; do
	mkdir -p ".$at"
	case $type in
	cgroup2) mount -t cgroup2 cgroup2 ".$at" ;;
	*) mount -t cgroup -o "$(echo "$options" | sed 's/\(rw\|ro\|nosuid\|nodev\|noexec\|relatime\|release_agent=[^,]*\|clone_children\),*//g; s/,$//')" cgroup ".$at" ;;
	esac
done
# With empty package lists, apt needs no network for packages that are installed.
for dir in run tmp var/tmp root dev etc/docker var/lib/containerd var/lib/apt/lists; do
	mkdir -p "$dir"
	mount -t tmpfs -o mode=755 "$dir" "$dir"
done
chmod 1777 tmp var/tmp
# A copy of the package database, because the host may install packages meanwhile.
mount -t tmpfs -o mode=755 dpkg "$1/dpkg"
cp -a var/lib/dpkg/. "$1/dpkg/"
rm -f "$1"/dpkg/updates/* "$1"/dpkg/lock*
mount --move "$1/dpkg" var/lib/dpkg
# The installation of a package would build an index of all manual pages.
rm -f var/lib/man-db/auto-update
mkdir -p var/lib/docker
mount --bind "$2" var/lib/docker
for device in null zero full random urandom tty; do
	: >"dev/$device"
	mount --bind "/dev/$device" "dev/$device"
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts dev/pts
mount -t tmpfs shm dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
ln -s /proc/self/fd/1 dev/stdout
ln -s /proc/self/fd/2 dev/stderr

# No unit starts by default, in particular none that affects the whole host: udev, sysctl,
# modules, mounts, clocks.
rm -rf usr/lib/systemd/system/*.wants etc/systemd/system/*.wants usr/lib/systemd/system-generators/* usr/lib/systemd/system-environment-generators/*
mkdir -p etc/systemd/system/multi-user.target.wants
ln -s /usr/lib/systemd/system/systemd-journald.service etc/systemd/system/multi-user.target.wants/
mkdir -p etc/systemd/system/sysinit.target.wants
ln -s /usr/lib/systemd/system/systemd-tmpfiles-setup.service etc/systemd/system/sysinit.target.wants/
: >etc/fstab
printf '[Journal]\nStorage=volatile\n' >etc/systemd/journald.conf
# Holdfast is not installed, and no policy-rc.d prevents packages from starting services.
rm -rf usr/bin/holdfast usr/local/bin/holdfast etc/holdfast var/lib/holdfast usr/sbin/policy-rc.d
echo machine >etc/hostname
hostname machine
ip link set lo up

mkdir -p run/host
pivot_root . run/host
umount -l /run/host
exec env -i container=holdfast-machine PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
	/lib/systemd/systemd --unit=multi-user.target --show-status=no --log-target=journal
