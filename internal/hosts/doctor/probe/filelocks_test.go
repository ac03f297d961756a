package probe

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/proc"
	"holdfast/test/poll"
)

// A process that is stopped while it holds a lock is found if another one waits for the lock. The lock
// comes from this test, and flock(1) holds it.
func TestStoppedHolders(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lock")
	flock := func() *exec.Cmd {
		c := exec.Command("flock", file, "sleep", "60")
		c.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = unix.Kill(-c.Process.Pid, unix.SIGKILL)
			_ = c.Wait()
		})
		return c
	}
	h := Host{Proc: proc.Host}
	holder := flock()
	poll.Until(t, "the lock is held", func() bool {
		f, err := os.Open(file)
		if err != nil {
			return false
		}
		defer f.Close()
		return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == unix.EWOULDBLOCK
	})
	flock()
	flock()
	if found := stoppedHolders(h); found[holder.Process.Pid] != 0 {
		t.Errorf("a holder that runs: %v", found)
	}
	if err := unix.Kill(holder.Process.Pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "two processes wait for a stopped holder", func() bool { return stoppedHolders(h)[holder.Process.Pid] == 2 })
	before := stoppedHolders(h)
	fs := holderFacts(h, before, before)
	i := 0
	for _, f := range fs {
		if f.Subject.Pid == holder.Process.Pid && f.Value == 2 {
			i++
		}
	}
	if i != 1 {
		t.Errorf("%+v", fs)
	}
	if fs := holderFacts(h, nil, before); len(fs) > 0 {
		t.Errorf("it was not stopped before: %+v", fs)
	}
}
