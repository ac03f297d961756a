package probe

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
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
		// Two CPUs, 960 neighbours.
		"net/stat/arp_cache": "entries  allocs\n000003c0 0000e298\n000003c0 00000000\n", "sys/net/ipv4/neigh/default/gc_thresh3": "1024\n",
		"7/net/arp": "IP address\n10.0.0.1\n10.0.0.2\n", "8/net/arp": "IP address\n",
		"7/status":                        fmt.Sprintf("Name:\tdb\nUid:\t%[1]d\t%[1]d\nThreads:\t1\nSigQ:\t90/96\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000001\n", os.Getuid()),
		"8/status":                        fmt.Sprintf("Name:\tq\nUid:\t%[1]d\t%[1]d\nThreads:\t1\nSigQ:\t90/96\nSigPnd:\t0000000000000000\nShdPnd:\t0000000200000000\n", os.Getuid()),
		"9/status":                        "Name:\tnode\nUid:\t4242\t4242\nVmSize:\t     960 kB\nVmLck:\t    6144 kB\nThreads:\t52\nSigQ:\t0/96\nCapEff:\t00000000a80425fb\n",
		"10/status":                       "Name:\tnode\nUid:\t4242\t4242\nVmLck:\t    6144 kB\nThreads:\t100\nSigQ:\t0/96\nCapEff:\t000001ffffffffff\n",
		"9/limits":                        "Limit                     Soft Limit           Hard Limit           Units\nMax processes             160                  200                  processes\nMax locked memory         8388608              8388608              bytes\nMax address space         1048576              unlimited            bytes\n",
		"10/limits":                       "Max processes             unlimited            unlimited            processes\nMax open files            1024                 4096                 files\nMax locked memory         8388608              8388608              bytes\n",
		"sys/fs/fanotify/max_user_groups": "4\n", "sys/fs/pipe-user-pages-soft": "64\n",
		"sys/fs/inotify/max_user_instances": "128\n", "sys/fs/inotify/max_user_watches": "8192\n",
	} {
		file = filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	links := []string{
		"/dev/pts/ptmx", "/dev/ptmx", "/dev/null", "anon_inode:[fanotify]", "anon_inode:[fanotify]", "anon_inode:[fanotify]",
		"pipe:[1]", "pipe:[1]", "pipe:[2]", "pipe:[3]",
	}
	for i, to := range links {
		if err := os.Symlink(to, filepath.Join(root, "8/fd", strconv.Itoa(i+3))); err != nil {
			t.Fatal(err)
		}
	}
	fs, err := readLimits(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	opened, err := readInotify(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	locked, mapped := make(map[int]float64), make(map[int]float64)
	pids := make(map[string]int)
	for _, f := range append(fs, opened...) {
		if f.Name == fact.LimitUsed || f.Name == fact.UserLimit {
			pids[f.Subject.Device] = f.Subject.Pid
		}
		if f.Name == fact.ProcessLocked {
			locked[f.Subject.Pid] = f.Value
		}
		if f.Name == fact.ProcessMapped {
			mapped[f.Subject.Pid] = f.Value
		}
		if f.Name == fact.LimitsSeen && f.Value != 8 {
			t.Errorf("%v limits were read", f.Value)
		}
	}
	if want := map[string]int{LimitAIO: 7, LimitPTY: 8, LimitKeys: 0, LimitNeighbours: 7, LimitSignals: 8, LimitProcesses: 10, LimitFanotify: 8, LimitPipes: 8}; !maps.Equal(pids, want) {
		t.Errorf("%v, not %v", pids, want)
	}
	if want := map[int]float64{9: 0.75}; !maps.Equal(locked, want) { // process 10 has CAP_IPC_LOCK
		t.Errorf("locked memory: %v, not %v", locked, want)
	}
	if want := map[int]float64{9: 0.9375}; !maps.Equal(mapped, want) { // process 10 has no limit
		t.Errorf("address space: %v, not %v", mapped, want)
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
