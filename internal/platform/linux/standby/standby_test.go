package standby

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/proc"
)

func TestProgramRanges(t *testing.T) {
	const maps = `00400000-00f43000 r-xp 00000000 fe:00 247741                             /usr/bin/holdfast
00f43000-01caa000 r--p 00b43000 fe:00 247741                             /usr/bin/holdfast (deleted)
01caa000-01d34000 rw-p 018aa000 fe:00 247741                             /usr/bin/holdfast
01d34000-03d7c000 rw-p 00000000 00:00 0
7f0000000000-7f0000001000 r--s 00000000 fe:00 99                         /etc/other
7ffd3b5e2000-7ffd3b603000 rw-p 00000000 00:00 0                          [stack]
`
	want := [][2]uint64{{0x400000, 0xf43000}, {0xf43000, 0x1caa000}}
	if got := programRanges(maps); !slices.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
	self, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	if got := programRanges(string(self)); len(got) < 2 {
		t.Errorf("of this program: %x", got)
	}
}

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
