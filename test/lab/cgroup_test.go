package lab

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"holdfast/internal/platform/linux/flock"
	"holdfast/test/poll"
)

// A killed lab may leave frozen processes, which die only when the freezer's hierarchy has thawed them.
func TestRemoveCgroupOfAFrozenProcess(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: control groups need root")
	}
	dir, err := flock.MkdirTemp(t.TempDir(), prefix)
	if err != nil {
		t.Fatal(err)
	}
	w := workspaceIn(dir)
	t.Cleanup(func() {
		if err := w.remove(); err != nil {
			t.Error(err)
		}
	})
	sleep := exec.Command("sleep", "inf")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sleep.Process.Kill() }) // it may be dead
	ended := make(chan error, 1)
	go func() { ended <- sleep.Wait() }()
	mounts, err := readMounts()
	if err != nil {
		t.Fatal(err)
	}
	frozen := 0
	for _, m := range mounts {
		group := filepath.Join(m.point, w.name)
		if m.fsType != "cgroup" && m.fsType != "cgroup2" || os.Mkdir(group, 0o755) != nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(sleep.Process.Pid)), 0); err != nil {
			t.Logf("%s: %v", group, err) // a cpuset without CPUs
			continue
		}
		if file := filepath.Join(group, "freezer.state"); os.WriteFile(file, []byte("FROZEN"), 0) == nil {
			frozen++
			poll.Until(t, "the process is frozen", func() bool { text, err := os.ReadFile(file); return err == nil && string(text) == "FROZEN\n" })
		} else if os.WriteFile(filepath.Join(group, "cgroup.freeze"), []byte("1"), 0) == nil {
			frozen++
		}
	}
	if frozen == 0 {
		t.Fatal("no hierarchy has frozen the process")
	}
	if err := removeCgroup(w.name); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("the process has ended by itself")
	}
}
