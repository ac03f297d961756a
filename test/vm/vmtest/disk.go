package vmtest

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

	"holdfast/test/vm"
)

// Disk is the mount point of the disk in the machine.
const Disk = "/disk"

const (
	diskImage = "/vm/disk.gz" // in the machine
	diskSize  = 384 << 20     // bytes
)

// AddDisk adds an empty ext4 to a machine, in which MountDisk mounts it. The machine has
// no disk by itself. Files in memory file systems cannot be reclaimed, and have no
// negative dentries, so the disk is on zram.
func AddDisk(t *testing.T, c *vm.Config) {
	t.Helper()
	if testing.Short() {
		return // nothing runs in the machine then
	}
	c.Modules = append(c.Modules, "lzo-rle", "zram")
	if c.Files == nil {
		c.Files = map[string]string{}
	}
	c.Files[diskImage] = newDisk(t)
}

// newDisk creates the file system and returns the path of its compressed image.
func newDisk(t *testing.T) string {
	t.Helper()
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

// MountDisk mounts the disk at Disk, in the machine.
func MountDisk() error {
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
	if err := os.Mkdir(Disk, 0o755); err != nil {
		return err
	}
	return unix.Mount(name, Disk, "ext4", 0, "")
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
