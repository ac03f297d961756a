package tracepoint

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
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
	for _, count := range []func(string) (*Tally, error){CountStops, CountTraps} {
		if _, err := count("/nonexistent"); err == nil {
			t.Error("no error without the kernel's types")
		}
	}
}

// Stops of a traced process are counted with its tracer, for one that is attached and for one that is
// seized. A stop by a signal, without a tracer, is not.
func TestCountTraps(t *testing.T) {
	needRoot(t)
	if !ownPids() {
		t.Fatal("run the test in the first pid namespace: the kernel counts by its pids")
	}
	runtime.LockOSThread() // the tracer is a thread
	defer runtime.UnlockOSThread()
	c, err := CountTraps("/sys/kernel/btf/vmlinux")
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	pid := child.Process.Pid
	stops := func(options int) error {
		var s unix.WaitStatus
		_, err := unix.Wait4(pid, &s, options, nil)
		if err == nil && !s.Stopped() {
			err = fmt.Errorf("the status is %#x", s)
		}
		return err
	}
	const n = 3
	for range n {
		err = errors.Join(err, unix.PtraceAttach(pid), stops(unix.WALL), unix.PtraceDetach(pid))
		err = errors.Join(err, unix.PtraceSeize(pid), unix.PtraceInterrupt(pid), stops(unix.WALL), unix.PtraceDetach(pid))
	}
	err = errors.Join(err, child.Process.Signal(unix.SIGSTOP), stops(unix.WUNTRACED), child.Process.Kill())
	_ = child.Wait() // it was killed
	places, err2 := c.Read()
	if err := errors.Join(err, err2, c.Close()); err != nil {
		t.Fatal(err)
	}
	traps := uint64(0)
	for _, p := range places {
		if p.Pid == pid && p.Object == uint64(os.Getpid()) {
			traps += p.Count
		}
	}
	if traps != 2*n {
		t.Errorf("%d of %d stops were counted: %+v", traps, 2*n, places)
	}
}
