package lab

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// runInit is pid 1 of a lab. It prepares the namespaces, runs the program, reaps, and
// returns the program's exit code.
func runInit() (int, error) {
	if err := prepareMounts(); err != nil {
		return 1, fmt.Errorf("prepare the lab's mounts: %w", err)
	}
	if err := loopbackUp(); err != nil {
		return 1, fmt.Errorf("bring up lo in the lab: %w", err)
	}
	ns, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return 1, err
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, forwarded...)
	defer signal.Stop(signals)
	pid, err := syscall.ForkExec("/proc/self/exe", os.Args, &syscall.ProcAttr{
		Env:   withMarker(ns),
		Files: []uintptr{0, 1, 2},
	})
	if err != nil {
		return 1, fmt.Errorf("start the program in the lab: %w", err)
	}
	ended := make(chan struct{})
	defer close(ended)
	go passOn(signals, pid, ended)
	return reap(pid)
}

// reap waits for children, including adopted ones, until the child with this pid has ended.
// Remaining processes die with pid 1.
func reap(pid int) (int, error) {
	for {
		var status syscall.WaitStatus
		got, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 1, fmt.Errorf("wait for the lab's processes: %w", err)
		case got == pid:
			return exitStatus(status), nil
		}
	}
}

// loopbackUp sets lo up, which is down in a new network namespace (network_namespaces(7)).
func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// prepareMounts makes this mount namespace private to the lab.
func prepareMounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := forgetContainers(); err != nil {
		return err
	}
	// The /proc of the old pid namespace shows pids that are not valid here.
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	// The lab cannot reach the sockets, locks and state of the host's engine. What the
	// lab's engine and its shims write there stays in the lab.
	private := []string{"/run", "/etc/docker"}
	if fi, err := os.Lstat("/var/run"); err == nil && fi.IsDir() {
		private = append(private, "/var/run")
	}
	for _, dir := range private {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
			return fmt.Errorf("mount an empty %s: %w", dir, err)
		}
	}
	return nil
}

// forgetContainers detaches the mounts of the host's containers from this namespace. Copies
// would keep their file systems and network namespaces after the host's engine has removed
// them.
func forgetContainers() error {
	mounts, err := readMounts()
	if err != nil {
		return err
	}
	for _, m := range mounts {
		ofContainer := m.fsType == "overlay" || m.fsType == "nsfs" || m.fsType == "tmpfs" && m.source == "shm"
		if m.point == "/" || !ofContainer {
			continue
		}
		// EINVAL: it was detached with a mount above it.
		if err := unix.Unmount(m.point, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("detach %s: %w", m.point, err)
		}
	}
	return nil
}
