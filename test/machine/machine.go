// Package machine boots a Debian with systemd as its first process, for tests of what
// people install and type: it has this host's programs and packages, and everything
// that it changes is its own. It is no virtual machine: the kernel is the host's, and
// so are its settings, which it cannot change.
//
// Its root is an overlay over the host's, in memory; its processes, mounts, network
// (nothing but lo), names and control groups are namespaces of their own, which the
// kernel takes along when the test program goes.
package machine

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/deathsig"
	"holdfast/internal/platform/linux/flock"
	"holdfast/internal/platform/linux/netns"
)

// boot is the machine's first process.
//
//go:embed boot.sh
var boot string

// prefix begins the names of a machine's directory and control groups.
const prefix = "holdfast-machine-"

// patience bounds what has to happen anyhow.
const patience = 2 * time.Minute

// Machine is one that runs.
type Machine struct {
	t   testing.TB
	pid int // of its first process, here
}

// Start boots a machine that is gone when the test has ended. It needs root. With
// -short it skips the test.
func Start(t testing.TB) *Machine {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: a machine needs root, systemd and its time")
	}
	dir := workspace(t)
	script := filepath.Join(dir.Path, "boot.sh")
	if err := os.WriteFile(script, []byte(boot), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"empty", "data"} {
		if err := os.Mkdir(filepath.Join(dir.Path, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	// The shell enters the groups before the namespace of groups is made, so that
	// they are all of them that the machine sees.
	cmd := exec.Command("sh", "-c", `for d in "$@"; do echo 0 >"$d/cgroup.procs" || exit; done
exec unshare --pid --mount --net --uts --ipc --cgroup --fork --kill-child "$0/boot.sh" "$0/empty" "$0/data"`, dir.Path)
	cmd.Args = append(cmd.Args, makeGroups(t, dir.Name())...)
	cmd.Stdout, cmd.Stderr = &out, &out
	ended, err := deathsig.Start(cmd, unix.SIGKILL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // and the kernel the rest: --kill-child
		<-ended
	})
	m := &Machine{t: t}
	if err := m.awaitBoot(cmd.Process.Pid, ended); err != nil {
		t.Fatalf("the machine does not come up: %v\n%s", err, &out)
	}
	return m
}

// workspace is the machine's directory, on a disk where a container engine can have
// its data.
func workspace(t testing.TB) *flock.Dir {
	t.Helper()
	base := filepath.Clean(os.TempDir())
	var fs unix.Statfs_t
	if err := unix.Statfs(base, &fs); err != nil || fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.OVERLAYFS_SUPER_MAGIC {
		base = "/var/tmp"
	}
	sweep := func(d *flock.Dir) error {
		return errors.Join(removeGroups(d.Name()), os.RemoveAll(d.Path), d.Close())
	}
	if err := flock.Dead(base, prefix, sweep); err != nil {
		t.Fatalf("removing what an earlier machine left: %v", err)
	}
	dir, err := flock.MkdirTemp(base, prefix)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sweep(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// hierarchies are where control groups are mounted.
func hierarchies() (dirs []string, err error) {
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 2 && (f[2] == "cgroup" || f[2] == "cgroup2") {
			dirs = append(dirs, f[1])
		}
	}
	return dirs, nil
}

// makeGroups makes a machine's control groups.
func makeGroups(t testing.TB, name string) (dirs []string) {
	t.Helper()
	roots, err := hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	for _, root := range roots {
		dir := filepath.Join(root, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, dir)
		if err := inherit(root, dir); err != nil {
			t.Fatal(err)
		}
	}
	return dirs
}

// inherit gives a group of v1's cpuset the CPUs that are above it, without which no
// process may enter (cpuset(7)).
func inherit(from, to string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		text, err := os.ReadFile(filepath.Join(from, name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), text, 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// removeGroups removes a machine's control groups, whose processes are dead or about
// to be.
func removeGroups(name string) error {
	roots, err := hierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) {
			err := removeTree(filepath.Join(root, name))
			if err == nil {
				break
			}
			if time.Since(begun) > patience {
				return err
			}
		}
	}
	return nil
}

// removeTree removes a control group and what is below it.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return unix.Rmdir(dir)
}

// awaitBoot waits until systemd has started what it was to start. above is the
// process that is the first one's parent.
func (m *Machine) awaitBoot(above int, ended <-chan error) error {
	var last error
	for begun := time.Now(); time.Since(begun) < patience; time.Sleep(50 * time.Millisecond) {
		select {
		case err := <-ended:
			return fmt.Errorf("it has ended: %w", err)
		default:
		}
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", above, above))
		if err != nil {
			return err
		}
		m.pid, _ = strconv.Atoi(strings.TrimSpace(string(children)))
		if program, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", m.pid)); m.pid == 0 || err != nil || string(program) != "systemd\n" {
			continue
		}
		out, err := m.Command(context.Background(), "systemctl is-system-running").Output()
		if state := strings.TrimSpace(string(out)); state == "running" {
			return nil
		} else if last = fmt.Errorf("its state is %s: %v", state, err); state == "degraded" {
			out, _ := m.Command(context.Background(), "systemctl --failed; journalctl -n 50 --no-pager").CombinedOutput()
			return fmt.Errorf("%w\n%s", last, out)
		}
	}
	return last
}

// Command is bash in the machine, as root in /root, with a script. It may be started
// from any goroutine.
func (m *Machine) Command(ctx context.Context, script string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", "--target", strconv.Itoa(m.pid), "--all", "--root", "env", "-i", "--chdir=/root",
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8", "SYSTEMD_PAGER=", "DEBIAN_FRONTEND=noninteractive",
		"bash", "-euo", "pipefail", "-c", script)
}

// Run runs a script and returns what it prints. A script that fails ends the test.
func (m *Machine) Run(script string) string {
	m.t.Helper()
	out, err := m.Command(m.t.Context(), script).CombinedOutput()
	if err != nil {
		m.t.Fatalf("in the machine: %s\n%v\n%s", script, err, out)
	}
	return string(out)
}

// Path is where a file of the machine is, for this test to read and write.
func (m *Machine) Path(name string) string {
	return filepath.Join("/proc", strconv.Itoa(m.pid), "root", name)
}

// Net is the machine's network namespace, as netns.Do takes it.
func (m *Machine) Net() string { return netns.OfProcess(m.pid) }

// Show returns what the machine's journal has of a unit, for a test that failed.
func (m *Machine) Show(unit string) string {
	out, err := m.Command(context.Background(), "systemctl status --no-pager -n 0 "+unit+"; journalctl -o cat --no-pager -n 80 -u "+unit).CombinedOutput()
	return fmt.Sprintf("%s%v", out, err)
}
