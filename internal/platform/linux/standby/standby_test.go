package standby

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/proc"
)

func TestLockProgram(t *testing.T) {
	t.Cleanup(func() {
		if err := unix.Munlockall(); err != nil {
			t.Error(err)
		}
	})
	if err := LockProgram(); err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	field, _ := proc.Field(status, "VmLck") // kB
	var locked int64
	if _, err := fmt.Sscan(field, &locked); err != nil || locked<<10 < fi.Size()/4 {
		t.Errorf("%q is locked of a program of %d bytes: %v", field, fi.Size(), err)
	}
}
