package probe

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/proc"
)

// A limit that is more than half used is a fact, with the process that has most.
func TestLimits(t *testing.T) {
	root := t.TempDir()
	h := Host{Proc: proc.FS(root)}
	for file, text := range map[string]string{
		"sys/fs/aio-nr": "63000\n", "sys/fs/aio-max-nr": "65536\n",
		"sys/kernel/pty/nr": "3060\n", "sys/kernel/pty/max": "4096\n", "sys/kernel/pty/reserve": "1024\n",
		"key-users":  fmt.Sprintf("    0:    22 21/21 16/1000000 950/25000000\n%5d:   197 197/197 196/200 4000/20000\n", os.Getuid()+7),
		"7/maps":     "7f00 rw-s 00000000 00:11 1 /[aio] (deleted)\n7f10 rw-s 00000000 00:11 2 /[aio] (deleted)\n",
		"8/maps":     "7f00 rw-s 00000000 00:11 1 /[aio] (deleted)\n",
		"8/fd/empty": "",
	} {
		file = filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, link := range [][2]string{{"/dev/pts/ptmx", "3"}, {"/dev/ptmx", "4"}, {"/dev/null", "5"}} {
		if err := os.Symlink(link[0], filepath.Join(root, "8/fd", link[1])); err != nil {
			t.Fatal(err)
		}
	}
	fs, err := readLimits(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	pids := make(map[string]int)
	for _, f := range fs {
		if f.Name == fact.LimitUsed {
			pids[f.Subject.Device] = f.Subject.Pid
		}
		if f.Name == fact.LimitsSeen && f.Value != 4 {
			t.Errorf("%v limits were read", f.Value)
		}
	}
	if want := map[string]int{LimitAIO: 7, LimitPTY: 8, LimitKeys: 0}; !maps.Equal(pids, want) {
		t.Errorf("%v, not %v", pids, want)
	}
}

// Message queues are counted without a mount of them.
func TestMessageQueues(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("run the test as root: it counts the queues of its IPC namespace")
	}
	before, err := messageQueues()
	if err != nil {
		t.Fatal(err)
	}
	name, err := unix.BytePtrFromString(fmt.Sprintf("holdfast-test-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	fd, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(name)), unix.O_CREAT|unix.O_RDWR, 0o600, 0, 0, 0)
	if errno != 0 {
		t.Fatal(errno)
	}
	defer unix.Close(int(fd))
	after, err := messageQueues()
	if _, _, errno := unix.Syscall(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(name)), 0, 0); errno != 0 {
		t.Error(errno)
	}
	if err != nil || after != before+1 {
		t.Errorf("%v queues, and %v before: %v", after, before, err)
	}
}
