package engine

import "strings"

// startCauses are causes for which an engine starts no container: words of its error, in
// lower case, and what to do. All words of an entry have to occur; the first entry that
// fits applies.
var startCauses = []struct {
	words []string
	hint  string
}{
	// moby, daemon/apparmor_default.go; runc, libcontainer/apparmor.
	{[]string{"apparmor"}, "the kernel has AppArmor enabled, and its parser or the engine's profile is missing: install the package apparmor, and restart the engine"},
	// runc before 1.2, libcontainer/specconv/spec_linux.go: "namespace {time } does not exist".
	{[]string{"namespace", "does not exist"}, "the engine wants a kind of namespace that its runtime does not know: install the runtime that the engine is made for, such as runc 1.2 or later"},
	{[]string{"namespace", "invalid argument"}, "the kernel lacks a kind of namespace that the engine wants: boot a kernel with it (`lsns -t time` shows whether time namespaces exist), or use an engine made for this kernel"},
	{[]string{"unshare", "invalid argument"}, "the kernel lacks a kind of namespace that the engine wants: boot a kernel with it, or use an engine made for this kernel"},
	{[]string{"unshare", "operation not permitted"}, "the kernel forbids new namespaces to the engine: run the engine as root outside of a restricted container"},
	// runc and crun on hosts without control groups, or without a controller.
	{[]string{"cgroup", "no such file or directory"}, "a control group controller is missing: mount the control groups of this host, and boot without cgroup_disable on the kernel's command line"},
	{[]string{"cgroup", "mount"}, "the control groups of this host are not mounted: systemd mounts them at its start, `mount -t cgroup2 cgroup2 /sys/fs/cgroup` does by hand"},
	{[]string{"cgroup", "not"}, "a control group controller is missing: /proc/cgroups lists those of the kernel; boot without cgroup_disable on its command line"},
	{[]string{"iptables", "no chain"}, "the engine's rules of the firewall are gone, such as after a reload of the firewall: restart the engine, which makes them again"},
	{[]string{"seccomp", "not supported"}, "the kernel or the runtime has no seccomp: use a kernel and a runtime with it"},
	{[]string{"executable file not found"}, "the engine's container runtime is not installed: install the package runc, or correct default-runtime in /etc/docker/daemon.json"},
	{[]string{"fork/exec", "no such file or directory"}, "the engine's container runtime is not installed: install it, or correct its path in /etc/docker/daemon.json"},
	{[]string{"no space left on device"}, "a disk is full: /run, or the disk of the engine's data"},
}

// startHint returns what to do about an error of a container's start, "" if its cause is
// not known.
func startHint(message string) string {
	message = strings.ToLower(message)
next:
	for _, c := range startCauses {
		for _, word := range c.words {
			if !strings.Contains(message, word) {
				continue next
			}
		}
		return c.hint
	}
	return ""
}
