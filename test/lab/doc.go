// Package lab runs a Docker engine of its own for tests and benches, on the
// user's own machine, without touching the user's engine, containers, images,
// bridge or firewall.
//
// Reenter starts the running program once more in new pid, mount and network
// namespaces, below a small pid 1 that only reaps. In there /run is empty, the
// network has nothing but lo, and StartEngine starts dockerd as a plain child
// with a data directory, cgroups and addresses of its own. When the outer
// process goes, in whatever way, the kernel kills pid 1 with it, and with pid 1
// every process in the lab: daemon, shims and containers (pid_namespaces(7)).
// Mounts and network go with the last of them. Directories and cgroups that a
// killed lab left behind are removed by the next StartEngine.
//
// Two things of the host are shared: the page cache and the CPUs, so that what
// a bench measures is this machine; and, where AppArmor is on, the profile
// docker-default, which the daemon loads when no other has.
//
// The shape of a program that uses it:
//
//	if !lab.Inside() {
//		code, err := lab.Reenter()
//		…report err, exit with code…
//	}
//	engine, err := lab.StartEngine(ctx, lab.Options{})
//	defer engine.Stop()
//
// Reenter is called before the program opens or starts anything: all that comes
// before it happens three times (outside, as pid 1, inside).
//
// Tests use package labtest instead.
package lab
