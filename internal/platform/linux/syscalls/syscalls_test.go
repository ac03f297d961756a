package syscalls

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestName(t *testing.T) {
	for number, want := range map[int]string{
		unix.SYS_READ: "read", unix.SYS_GETPPID: "getppid", unix.SYS_FADVISE64: "fadvise64", unix.SYS_CLONE3: "clone3",
		-1: "syscall -1", 9999: "syscall 9999",
	} {
		if got := Name(number); got != want {
			t.Errorf("%d is %q, want %q", number, got, want)
		}
	}
}
