package probe

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/proc"
)

// spacesOf reads the namespaces at two moments and returns the facts about groups with many.
func spacesOf(t *testing.T, h Host, meanwhile func()) *fact.Set {
	t.Helper()
	before, err := readNamespaces(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	meanwhile()
	after, err := readNamespaces(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	set := &fact.Set{}
	set.Add(groupSpaces(before, after)...)
	return set
}

// Processes of this group that have a mount namespace each are counted, with their mounts.
func TestGroupSpaces(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("run the test as root: it makes mount namespaces")
	}
	runtime.LockOSThread() // the probe ends threads, and a child ends with the one that started it
	defer runtime.UnlockOSThread()
	h := (&fixture{t: t}).thisHost()
	begin := func(n int) {
		for range n {
			cmd := exec.Command("sleep", "300")
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Unshareflags: unix.CLONE_NEWNS}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = cmd.Process.Kill() // it has ended already if the test has failed
				_ = cmd.Wait()         // killed
			})
		}
	}
	begin(30)
	set := spacesOf(t, h, func() { begin(30) })
	_, own := groupsOf(h, os.Getpid())
	n, ok := set.Device(fact.GroupSpaces, own)
	old, _ := set.Device(fact.GroupSpacesOld, own)
	mounts, _ := set.Device(fact.GroupMounts, own)
	if !ok || n < 60 || n > 100 || old < 30 || n-old < 25 || mounts < 2*n {
		t.Errorf("%v of %v old, %v mounts: %+v", old, n, mounts, set.Facts)
	}
}

// A container that runs containers has one namespace in each inner group, and is no group with
// many; namespaces over the bound of those that are read count, too.
func TestGroupSpacesOfNode(t *testing.T) {
	root := t.TempDir()
	h := Host{Proc: proc.FS(root)}
	node := "/docker/" + strings.Repeat("0123456789abcdef", 4)
	process := func(pid int, group string, inodes map[string]int) {
		files(t, root, map[string]string{fmt.Sprintf("%d/cgroup", pid): "0::" + group + "\n", fmt.Sprintf("%d/mountinfo", pid): strings.Repeat("a line\n", 7)})
		dir := filepath.Join(root, fmt.Sprint(pid), "ns")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, kind := range []string{"mnt", "net", "ipc"} {
			if err := os.Symlink(fmt.Sprintf("%s:[%d]", kind, inodes[kind]), filepath.Join(dir, kind)); err != nil {
				t.Fatal(err)
			}
		}
	}
	own := map[string]int{"mnt": 1, "net": 1, "ipc": 1}
	process(1, "/init.scope", own)
	for i := range 700 { // three namespaces each: over the bound
		process(10+i, fmt.Sprintf("%s/pods/%d", node, i), map[string]int{"mnt": 10 + i, "net": 10 + i, "ipc": 10 + i})
	}
	for i := range 60 {
		process(5000+i, "/system.slice/jobs.service", map[string]int{"mnt": 5000 + i, "net": 1, "ipc": 1})
	}
	fs := spacesOf(t, h, func() { // a new process, with a namespace of the number of one that is gone
		if err := os.RemoveAll(filepath.Join(root, "5001")); err != nil {
			t.Fatal(err)
		}
		process(6001, "/system.slice/jobs.service", map[string]int{"mnt": 5001, "net": 1, "ipc": 1})
	}).Facts
	if len(fs) != 3 {
		t.Fatalf("%+v", fs)
	}
	for _, f := range fs {
		// the mounts of some of them are over the bound
		want := map[string]float64{fact.GroupSpaces: 60, fact.GroupSpacesOld: 59, fact.GroupMounts: f.Value}[f.Name]
		if f.Value != want || f.Value >= 60*7 || f.Subject.Device != "/system.slice/jobs.service" || f.Subject.Pid != 5000 {
			t.Errorf("%+v, want %v", f, want)
		}
	}
}

// Connections that a server of a Unix socket has not accepted are counted by its path; the facts have
// those that wait at both ends.
func TestUnixWaiting(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for range 3 {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	s := socketsOf(Host{Proc: proc.Host}, "/proc/self")
	if n := s[unixWaiting+path]; n != 2 {
		t.Errorf("%v connections wait", n)
	}
	before := map[string]space{"net:[1]": {values: sample{unixWaiting + path: 1}}}
	fs, err := namespaceFacts(Host{}, before, map[string]space{"net:[1]": {kind: "net", values: s, subject: fact.Subject{Device: "net:[1]"}}}, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	set := &fact.Set{}
	set.Add(fs...)
	if n, ok := set.Device(fact.UnixWaiting, path); !ok || n != 1 {
		t.Errorf("%+v", fs)
	}
}
