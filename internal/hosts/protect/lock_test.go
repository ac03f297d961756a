package protect

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNoteOnAFullDisk: a note that does not fit replaces no note. What a killed hold has
// left is then found by the next protect.
func TestNoteOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		if os.Geteuid() != 0 && testing.Short() {
			t.Skip("-short without root: only root can mount")
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	lock := func() *Lock {
		t.Helper()
		locks, err := LockPorts(t.Context(), dir, "", []uint16{80})
		if err != nil {
			t.Fatal(err)
		}
		return locks[0]
	}
	killed := lock()
	if err := noteAll([]*Lock{killed}, &Residue{Backend: Plug, What: "lo", Of: []Address{{Port: 80}}}); err != nil {
		t.Fatal(err)
	}
	killed.file.Close() // as the kernel does

	next := lock()
	defer next.file.Close()
	large := &Residue{Backend: NFQueue, What: strings.Repeat("large", 20_000), Of: []Address{{Port: 80}}}
	if err := noteAll([]*Lock{next}, large); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("a note larger than the disk: %v", err)
	}
	next.file.Close()
	last := lock()
	defer last.file.Close()
	if left := last.left; left == nil || left.What != "lo" || !slices.Equal(left.Of, []Address{{Port: 80}}) {
		t.Errorf("the note of what the killed hold left is now %+v", left)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
		t.Errorf("files: %v, %v", left, err)
	}
}
