package probe

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/proc"
)

// A process whose file is nearly as large as its limit is found; one that only reads such a file is not.
func TestFileSizes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(file, make([]byte, 960<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	start := func(flag int) int {
		f, err := os.OpenFile(file, flag, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		c := exec.Command("sleep", "60")
		c.ExtraFiles = []*os.File{f}
		c.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = c.Process.Kill()
			_ = c.Wait() // it was killed
		})
		if err := unix.Prlimit(c.Process.Pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 1024000, Max: 1024000}, nil); err != nil {
			t.Fatal(err)
		}
		return c.Process.Pid
	}
	writer, reader := start(os.O_WRONLY), start(os.O_RDONLY)
	h := Host{Proc: proc.Host}
	found := make(map[int]float64)
	for _, f := range fileSizes(t.Context(), h) {
		if f.Name == fact.FileSize {
			found[f.Subject.Pid] = f.Value
		}
	}
	if found[writer] != 0.96 || found[reader] != 0 {
		t.Errorf("the writer has %v, the reader %v", found[writer], found[reader])
	}
}
