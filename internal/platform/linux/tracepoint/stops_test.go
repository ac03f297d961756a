package tracepoint

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// Signals that stop a process are counted with their sender and the process. Others are not.
func TestCountStops(t *testing.T) {
	needRoot(t)
	c, err := CountStops("/sys/kernel/btf/vmlinux")
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	const n = 4
	for range n {
		err = errors.Join(err, child.Process.Signal(unix.SIGSTOP), child.Process.Signal(unix.SIGCONT))
	}
	err = errors.Join(err, child.Process.Kill())
	_ = child.Wait() // it was killed
	places, err2 := c.Read()
	if err := errors.Join(err, err2, c.Close()); err != nil {
		t.Fatal(err)
	}
	if !ownPids() {
		t.Fatal("run the test in the first pid namespace: the kernel counts by its pids")
	}
	stops := uint64(0)
	for _, p := range places {
		if p.Pid == os.Getpid() && p.Object == uint64(child.Process.Pid) {
			stops += p.Count
		}
	}
	if stops != n {
		t.Errorf("%d of %d signals were counted: %+v", stops, n, places)
	}
	if _, err := CountStops("/nonexistent"); err == nil {
		t.Error("no error without the kernel's types")
	}
}
