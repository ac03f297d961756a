package probe

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/proc"
	"holdfast/test/poll"
)

// A process whose file is nearly as large as its limit is found; one that only reads such a file is not.
func TestFileSizes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(file, make([]byte, 960<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	start := func(redirection string) int {
		c := exec.Command("sh", "-c", "ulimit -f 2000; exec sleep 60 "+redirection+file) // blocks of 512 bytes
		c.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = c.Process.Kill()
			_ = c.Wait() // it was killed
		})
		return c.Process.Pid
	}
	writer, reader := start(">>"), start("<")
	h := Host{Proc: proc.Host}
	poll.Until(t, "both have the limit", func() bool {
		a, ok := softLimit(h, writer, "Max file size")
		b, ok2 := softLimit(h, reader, "Max file size")
		return ok && ok2 && a == 1024000 && b == 1024000 && largestWritten("/proc/"+strconv.Itoa(writer)) > 0
	})
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
