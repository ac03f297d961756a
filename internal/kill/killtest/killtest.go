// Package killtest lets tests make a container of any process.
package killtest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Sleeper starts a process that sleeps, in a control group that is named after a
// container's id. Both are gone at the test's end.
func Sleeper(t testing.TB, id string) *exec.Cmd {
	t.Helper()
	// On v1 the freezer's hierarchy tells; on v2 there is only one.
	root := "/sys/fs/cgroup/freezer"
	if _, err := os.Stat(root); errors.Is(err, os.ErrNotExist) {
		root = "/sys/fs/cgroup"
	}
	dir := filepath.Join(root, id)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, dir) })
	cmd := exec.Command("sleep", "inf")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	})
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// remove waits until the group's processes are gone.
func remove(t testing.TB, dir string) {
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		err := os.Remove(dir)
		if err == nil || errors.Is(err, os.ErrNotExist) {
			return
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			t.Error(err)
			return
		}
	}
}
