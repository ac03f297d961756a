package probe

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/proc"
)

// A program that does not read its events is found; one that has few, or reads them, is not. The program
// is sleep(1), which has instances of this test open: the doctor leaves out its own process.
func TestUnread(t *testing.T) {
	h := Host{Proc: proc.Host}
	watch := func(events float64) int {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		dir := t.TempDir()
		if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_ATTRIB); err != nil {
			t.Fatal(err)
		}
		names := []string{filepath.Join(dir, "a"), filepath.Join(dir, "b")}
		for _, name := range names {
			if err := os.WriteFile(name, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for i := range int(events) { // the kernel merges events that are the same
			if err := os.Chmod(names[i%2], 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return fd
	}
	most := unreadFrom(h) / eventSize // with its name each event has twice the size
	full := watch(most)
	little := watch(most / 10)
	holder := exec.Command("sleep", "60")
	holder.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	holder.ExtraFiles = []*os.File{dup(t, full), dup(t, little)}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = holder.Process.Kill()
		_ = holder.Wait() // it was killed
	})
	found := func() int {
		fs, err := readInotify(t.Context(), h)
		if err != nil {
			t.Fatal(err)
		}
		return len(slices.DeleteFunc(fs, func(f fact.Fact) bool {
			return f.Name != fact.Unread || f.Subject.Pid != holder.Process.Pid || f.Value < most*2*eventSize*0.9
		}))
	}
	if n := found(); n != 1 {
		t.Errorf("%d processes do not read their events", n)
	}
	buf := make([]byte, 64<<10)
	for n := 1; n > 0; n, _ = unix.Read(full, buf) {
	}
	if n := found(); n != 0 {
		t.Errorf("%d processes do not read their events after they were read", n)
	}
}

// dup returns a file of another descriptor for the same.
func dup(t *testing.T, fd int) *os.File {
	t.Helper()
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(n), "inotify")
	t.Cleanup(func() { _ = f.Close() })
	return f
}
