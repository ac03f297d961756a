package diskdir_test

import (
	"testing"

	"holdfast/internal/platform/linux/diskdir"
)

// A directory in memory is not used for temporary files that must be on a disk.
func TestTemp(t *testing.T) {
	disk := diskdir.Temp()
	if in, err := diskdir.InMemory(disk); err != nil || in {
		t.Fatalf("%s: in memory %v, %v", disk, in, err)
	}
	t.Setenv("TMPDIR", disk)
	if dir := diskdir.Temp(); dir != disk {
		t.Errorf("%s, want %s", dir, disk)
	}
	for _, dir := range []string{"/dev/shm", "/no/such/directory"} {
		t.Setenv("TMPDIR", dir)
		if dir := diskdir.Temp(); dir != "/var/tmp" {
			t.Errorf("with TMPDIR: %s", dir)
		}
	}
	if in, err := diskdir.InMemory("/dev/shm"); err != nil || !in {
		t.Errorf("/dev/shm: in memory %v, %v", in, err)
	}
	if _, err := diskdir.InMemory("/no/such/directory"); err == nil {
		t.Error("a missing directory has a file system")
	}
}
