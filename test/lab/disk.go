package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"holdfast"
)

// Disk is a separate file system, on a loop device with a file. Tests can fill it without
// an effect on other file systems.
type Disk struct {
	Dir   string     // mount point
	space *workspace // has the file
}

// DiskOptions are the options of a Disk.
type DiskOptions struct {
	FS   string   // ext4, xfs or btrfs
	Size int64    // bytes; the file is sparse
	Make []string // additional arguments of mkfs
	Data string   // mount options (mount(2), data)
}

// NewDisk creates and mounts a file system. It works only inside a lab. The mount ends with
// the lab, and the next lab removes a remaining file.
func NewDisk(o DiskOptions) (*Disk, error) {
	if !Inside() {
		return nil, errors.New("make a disk: this process is not in a lab")
	}
	space, err := newWorkspace("", false)
	if err != nil {
		return nil, err
	}
	d := &Disk{Dir: filepath.Join(space.dir, "disk"), space: space}
	if err := d.mount(o); err != nil {
		return nil, errors.Join(fmt.Errorf("make a disk with %s: %w", o.FS, err), space.remove())
	}
	return d, nil
}

func (d *Disk) mount(o DiskOptions) error {
	path := filepath.Join(d.space.dir, "image")
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := errors.Join(file.Truncate(o.Size), os.Mkdir(d.Dir, 0o700)); err != nil {
		return err
	}
	if err := mkfs(o, path); err != nil {
		return err
	}
	loop, err := attach(file)
	if err != nil {
		return fmt.Errorf("attach a loop device: %w", err)
	}
	defer loop.Close() // the kernel detaches it after the last close
	if err := unix.Mount(loop.Name(), d.Dir, o.FS, 0, o.Data); err != nil {
		return fmt.Errorf("mount it: %w", err)
	}
	return nil
}

func mkfs(o DiskOptions, path string) error {
	command, err := exec.LookPath("mkfs." + o.FS)
	if err != nil {
		packages := map[string]string{"ext4": "e2fsprogs", "xfs": "xfsprogs", "btrfs": "btrfs-progs"}
		return holdfast.WithHint(err, "apt-get install "+packages[o.FS])
	}
	if out, err := exec.Command(command, append(append([]string{}, o.Make...), path)...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", command, err, out)
	}
	return nil
}

// attach creates a loop device for a file (loop(4)).
func attach(file *os.File) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	for {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, err
		}
		loop, err := os.OpenFile("/dev/loop"+strconv.Itoa(n), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		err = unix.IoctlLoopConfigure(int(loop.Fd()), &unix.LoopConfig{
			Fd: uint32(file.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR},
		})
		if err == nil {
			return loop, nil
		}
		loop.Close()
		if !errors.Is(err, unix.EBUSY) { // another process took it first
			return nil, err
		}
	}
}

// Remove unmounts the file system and removes its file. It must be the last call, when no
// process uses the file system.
func (d *Disk) Remove() error { return d.space.remove() }
