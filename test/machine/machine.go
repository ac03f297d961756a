// Package machine boots a Debian with systemd as its first process, for tests of packages and
// documented commands. The machine has the programs and packages of this host, and changes
// only its own copies. It is no virtual machine: it uses the kernel of the host, whose settings
// it cannot change.
//
// Its root is an overlay in memory over the root of the host. Processes, mounts, network (only
// lo), host name and control groups have their own namespaces. The kernel removes them at the end
// of the test program.
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

// patience is the limit of each wait. It is no measurement.
const patience = 2 * time.Minute

// Machine is a running machine.
type Machine struct {
	t   testing.TB
	pid int // of its first process, in this pid namespace
}

// Start boots a machine until the test ends. It needs root. With -short it skips the test.
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
	// The shell enters the groups before the cgroup namespace is created, so that the machine
	// sees no others.
	cmd := exec.Command("sh", "-c", `for d in "$@"; do echo 0 >"$d/cgroup.procs" || exit; done
exec unshare --pid --mount --net --uts --ipc --cgroup --fork --kill-child "$0/boot.sh" "$0/empty" "$0/data"`, dir.Path)
	cmd.Args = append(cmd.Args, makeGroups(t, dir.Name())...)
	cmd.Stdout, cmd.Stderr = &out, &out
	ended, err := deathsig.Start(cmd, unix.SIGKILL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // the kernel kills the other processes (--kill-child)
		<-ended
	})
	m := &Machine{t: t}
	if err := m.awaitBoot(cmd.Process.Pid, ended); err != nil {
		t.Fatalf("the machine does not come up: %v\n%s", err, &out)
	}
	return m
}

// workspace creates the machine's directory, on a disk that is suitable for the data of a
// container engine.
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

// hierarchies returns the mount points of control groups.
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

// makeGroups creates the control groups of a machine.
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

// inherit gives a cpuset group of v1 the CPUs of its parent. Without CPUs no process may enter
// (cpuset(7)).
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

// removeGroups removes the control groups of a machine, whose processes are dead or dying.
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

// removeTree removes a control group and the groups below it.
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

// awaitBoot waits until systemd has started all units. above is the parent of the machine's first
// process.
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

// Command returns a command that runs a script with bash in the machine, as root in /root. Any
// goroutine may start it.
func (m *Machine) Command(ctx context.Context, script string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", "--target", strconv.Itoa(m.pid), "--all", "--root", "env", "-i", "--chdir=/root",
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8", "SYSTEMD_PAGER=", "DEBIAN_FRONTEND=noninteractive",
		"bash", "-euo", "pipefail", "-c", script)
}

// Run runs a script and returns its output. The test ends if the script fails.
func (m *Machine) Run(script string) string {
	m.t.Helper()
	out, err := m.Command(m.t.Context(), script).CombinedOutput()
	if err != nil {
		m.t.Fatalf("in the machine: %s\n%v\n%s", script, err, out)
	}
	return string(out)
}

// Path returns the path of a machine's file on this host, for reads and writes.
func (m *Machine) Path(name string) string {
	return filepath.Join("/proc", strconv.Itoa(m.pid), "root", name)
}

// Net returns the machine's network namespace, as netns.Do expects it.
func (m *Machine) Net() string { return netns.OfProcess(m.pid) }

// Show returns the journal of a unit in the machine, for failed tests.
func (m *Machine) Show(unit string) string {
	out, err := m.Command(context.Background(), "systemctl status --no-pager -n 0 "+unit+"; journalctl -o cat --no-pager -n 80 -u "+unit).CombinedOutput()
	return fmt.Sprintf("%s%v", out, err)
}
