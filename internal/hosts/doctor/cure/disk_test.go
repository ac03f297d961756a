package cure_test

import (
	"compress/gzip"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// The virtual machine has no disk, and files in memory file systems cannot be reclaimed,
// so the machine gets an ext4 on zram. Both paths are in the machine.
const (
	diskImage     = "/vm/disk.gz"
	inMachineDisk = "/disk"
	diskSize      = 384 << 20
)

// newDisk creates an empty ext4 and returns the path of its compressed image.
func newDisk(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		return "" // nothing runs in the machine then
	}
	plain := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(plain, diskSize); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "mkfs.ext4", "-q", "-b", "4096", "-E", "lazy_itable_init=0", "-O", "^has_journal", plain).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v\n%s", err, out)
	}
	in, err := os.Open(plain)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(plain + ".gz")
	if err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(out)
	if _, err := io.Copy(z, in); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Name()
}

// mountDisk mounts the disk in the machine.
func mountDisk() error {
	in, err := os.Open(diskImage)
	if err != nil {
		return err
	}
	defer in.Close()
	z, err := gzip.NewReader(in)
	if err != nil {
		return err
	}
	// The pages of the disk must not be charged to a group. Those of a file behind a loop
	// device would be charged to the groups that write.
	if err := os.WriteFile("/sys/block/zram0/disksize", []byte(strconv.Itoa(diskSize)), 0); err != nil {
		return err
	}
	const name = "/dev/zram0"
	disk, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if err := errors.Join(copySparse(disk, z), disk.Sync(), disk.Close()); err != nil {
		return err
	}
	if err := os.Mkdir(inMachineDisk, 0o755); err != nil {
		return err
	}
	return unix.Mount(name, inMachineDisk, "ext4", 0, "")
}

// copySparse skips blocks of zeros, because a new zram is zeroed.
func copySparse(to *os.File, from io.Reader) error {
	block := make([]byte, 64<<10)
	for at := int64(0); ; at += int64(len(block)) {
		n, err := io.ReadFull(from, block)
		for _, b := range block[:n] {
			if b != 0 {
				if _, err := to.WriteAt(block[:n], at); err != nil {
					return err
				}
				break
			}
		}
		switch err {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF:
			return nil
		default:
			return err
		}
	}
}
