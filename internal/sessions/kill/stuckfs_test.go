package kill_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast/internal/sessions/kill"
)

// stuckFS is a FUSE file system, fuse(4), that accepts being mounted and never
// answers anything after.
type stuckFS struct {
	dev *os.File
	dir string
}

func newStuckFS(t *testing.T) *stuckFS {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &stuckFS{dev: os.NewFile(uintptr(fd), "/dev/fuse"), dir: t.TempDir()}
	opts := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)
	if err := unix.Mount("stuck", s.dir, "fuse", 0, opts); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.abort()
		if err := unix.Unmount(s.dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	// The kernel asks FUSE_INIT first: fuse_in_header, fuse_init_in.
	buf := make([]byte, 1<<17)
	if _, err := unix.Read(fd, buf); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 16+64) // fuse_out_header, fuse_init_out
	binary.NativeEndian.PutUint32(answer[0:], uint32(len(answer)))
	copy(answer[8:16], buf[8:16])                        // unique
	binary.NativeEndian.PutUint32(answer[16:], 7)        // major
	binary.NativeEndian.PutUint32(answer[20:], 31)       // minor
	binary.NativeEndian.PutUint32(answer[16+20:], 1<<12) // max_write
	if _, err := unix.Write(fd, answer); err != nil {
		t.Fatal(err)
	}
	return s
}

// visitor starts a process in the container's control groups that looks into the
// file system, and returns its pid once its request was read: from then on it
// cannot be interrupted.
func (s *stuckFS) visitor(t *testing.T, x *kill.Target) int {
	t.Helper()
	script := `read go; exec stat ` + filepath.Join(s.dir, "file")
	cmd := exec.Command("/bin/sh", "-c", script)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.abort()
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed, or stat failed: both as wanted
	})
	for _, g := range x.Groups() {
		if err := os.WriteFile(g.Dir()+"/cgroup.procs", fmt.Append(nil, cmd.Process.Pid), 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := in.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1<<17)
	if _, err := unix.Read(int(s.dev.Fd()), buf); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

// abort ends the connection; requests under way fail.
func (s *stuckFS) abort() { s.dev.Close() }
