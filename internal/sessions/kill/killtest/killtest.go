// Package killtest makes containers for tests from plain processes, without an
// engine.
package killtest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// group is the control group of a container of this id. On v1 it is in the freezer's
// hierarchy; on v2 there is only one hierarchy.
func group(id string) string {
	const freezer = "/sys/fs/cgroup/freezer"
	if _, err := os.Stat(freezer); err == nil {
		return filepath.Join(freezer, id)
	}
	return filepath.Join("/sys/fs/cgroup", id)
}

// Start starts a process that sleeps for at most ten minutes, in a control group that
// is named after a container's id. The caller reaps it and then calls Remove.
func Start(id string) (*exec.Cmd, error) {
	dir := group(id)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, os.Remove(dir))
	}
	procs := filepath.Join(dir, "cgroup.procs")
	if err := os.WriteFile(procs, []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
		return nil, errors.Join(err, cmd.Process.Kill(), cmd.Wait(), os.Remove(dir))
	}
	return cmd, nil
}

// Thaw thaws a frozen container: on v1 a frozen process does not die of SIGKILL. A
// container that is not frozen, or gone, is no error.
func Thaw(id string) error {
	file, word := filepath.Join(group(id), "freezer.state"), "THAWED"
	if _, err := os.Stat(file); err != nil {
		file, word = filepath.Join(group(id), "cgroup.freeze"), "0"
	}
	err := os.WriteFile(file, []byte(word), 0)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// Remove removes the container's control group. A group that is gone is no error.
func Remove(id string) error {
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		err := os.Remove(group(id))
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		// The kernel may count a process for a moment after it was reaped.
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return err
		}
	}
}

// Sleeper is Start for one test; the test's end removes process and group.
func Sleeper(t testing.TB, id string) *exec.Cmd {
	t.Helper()
	cmd, err := Start(id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // killed
		if err := Remove(id); err != nil {
			t.Error(err)
		}
	})
	return cmd
}

// Processes finds the living processes of a container in /proc by their control
// groups, independently of the code under test.
func Processes(t testing.TB, id string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	var alive []string
	for _, f := range files {
		if b, err := os.ReadFile(f); err != nil || !strings.Contains(string(b), id) {
			continue
		}
		b, err := os.ReadFile(filepath.Dir(f) + "/stat")
		if err == nil && !strings.Contains(string(b), ") Z ") && !strings.Contains(string(b), ") X ") {
			alive = append(alive, string(b))
		}
	}
	return alive
}
