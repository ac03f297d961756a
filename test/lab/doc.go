// Package lab runs a private Docker engine for tests and benches on the user's machine,
// without an effect on the user's engine, containers, images, bridge or firewall.
//
// Reenter starts the running program again in new pid, mount and network namespaces, below
// a small pid 1 that only reaps. There, /run is empty and the network has only lo.
// StartEngine starts dockerd as a child, with its own data directory, cgroups and
// addresses. When the outer process ends, the kernel also kills pid 1, and with it every
// process in the lab: daemon, shims and containers (pid_namespaces(7)). Mounts and network
// end with the last process. The next StartEngine removes the directories and cgroups of
// killed labs.
//
// The lab shares with the host the page cache and the CPUs, so a bench measures this
// machine. With AppArmor it also shares the profile docker-default, which the daemon loads
// if it is missing.
//
// A program uses it like this:
//
//	if !lab.Inside() {
//		code, err := lab.Reenter()
//		…report err, exit with code…
//	}
//	engine, err := lab.StartEngine(ctx, lab.Options{})
//	defer engine.Stop()
//
// Call Reenter before the program opens or starts anything, because the code before it runs
// three times: outside, as pid 1, and inside.
//
// Tests use package labtest instead.
package lab
