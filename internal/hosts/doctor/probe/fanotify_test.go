package probe

import (
	"encoding/binary"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/proc"
)

// answerLate scans files: it allows each open on a file system after a time, one after another.
func answerLate(t *testing.T, dir string, late time.Duration) {
	t.Helper()
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC, unix.O_RDONLY|unix.O_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.FanotifyMark(fd, unix.FAN_MARK_ADD|unix.FAN_MARK_FILESYSTEM, unix.FAN_OPEN_PERM|unix.FAN_ONDIR, unix.AT_FDCWD, dir); err != nil {
		t.Fatal(err)
	}
	events := make([]byte, 24) // one struct fanotify_event_metadata, with the file at 16
	for {
		if _, err := unix.Read(fd, events); err != nil {
			t.Fatal(err)
		}
		time.Sleep(late)
		answer := binary.NativeEndian.AppendUint32(append([]byte(nil), events[16:20]...), unix.FAN_ALLOW)
		if _, err := unix.Write(fd, answer); err != nil {
			t.Fatal(err)
		}
		if err := unix.Close(int(int32(binary.NativeEndian.Uint32(events[16:20])))); err != nil {
			t.Fatal(err)
		}
	}
}

// A scanner that answers late is found, with the group that waits for it.
func TestFanotify(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("run the test as root: it mounts a file system")
	}
	h := (&fixture{t: t}).thisHost()
	dir := t.TempDir()
	if err := unix.Mount("scanned", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	scanner := sleeper(t, "scanner", dir)
	for range 500 { // until it is asked
		if o, err := openFiles(h, scanner, map[string]bool{}); err == nil && o.asked {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	opener := sleeper(t, "opener", dir)
	waitFor(t, opener, "fanotify_")

	fs, err := readInotify(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	set := &fact.Set{}
	set.Add(fs...)
	n, _ := set.Host(fact.Scanners)
	held, _ := set.Host(fact.FanotifyHeld)
	group, _ := groupOf(h, opener)
	waits, _ := set.Group(fact.FanotifyWait, group)
	if n < 1 || held < 0.3 || waits < 0.3 {
		t.Errorf("%v scanners hold up %v, the opener %v", n, held, waits)
	}
	found := false
	for _, f := range set.Of(fact.FanotifyBy) {
		found = found || f.Subject.Pid == scanner && f.Value > 5
	}
	if w := set.Of(fact.FanotifyCPUWait); len(w) < 1 || w[0].Value < 0 || w[0].Value > 1 {
		t.Errorf("waits for a CPU: %+v", w)
	}
	if !found {
		t.Errorf("the scanner is not found: %+v", set.Of(fact.FanotifyBy))
	}
}

// A group that is only told of events asks for nothing, and neither does one of the right class
// without a mark that asks.
func TestAsks(t *testing.T) {
	for _, c := range []struct {
		fdinfo string
		want   bool
	}{
		{"pos:\t0\nflags:\t02000002\nmnt_id:\t16\nino:\t64\nfanotify flags:5 event-flags:88000\nfanotify sdev:82 mflags:0 mask:10000 ignored_mask:0\n", true},
		{"pos:\t0\nflags:\t02000002\nmnt_id:\t16\nino:\t64\nfanotify flags:9 event-flags:88000\nfanotify mnt_id:1d mflags:0 mask:100020 ignored_mask:0\n", true},
		{"pos:\t0\nflags:\t02000002\nmnt_id:\t16\nino:\t64\nfanotify flags:1 event-flags:88000\nfanotify sdev:82 mflags:0 mask:10020 ignored_mask:0\n", false},
		{"pos:\t0\nflags:\t02000002\nmnt_id:\t16\nino:\t64\nfanotify flags:5 event-flags:88000\nfanotify sdev:82 mflags:0 mask:8 ignored_mask:10000\n", false},
		{"", false},
	} {
		if got := asks(c.fdinfo); got != c.want {
			t.Errorf("%q: %v", c.fdinfo, got)
		}
	}
}

// A thread that has run since had its answer, and waits for another; it is not held up. Nor is one
// that waits for something else. Threads of the kernel are not read.
func TestHeldUp(t *testing.T) {
	root := t.TempDir()
	stat := func(pid, flags string) string {
		return pid + " (cat) D 1 0 0 0 -1 " + flags + strings.Repeat(" 0", 12) + " 5 0 0\n"
	}
	tree := make(map[string]string)
	for pid, where := range map[string]string{"10": "fanotify_handle_event", "11": "fanotify_get_response.isra.0", "12": "fanotify_read", "13": "fanotify_handle_event"} {
		tree[pid+"/stat"], tree[pid+"/task/"+pid+"/wchan"], tree[pid+"/task/"+pid+"/schedstat"] = stat(pid, "0"), where, "9 9 9\n"
		tree[pid+"/cgroup"] = "0::/group-" + pid + "\n"
	}
	tree["13/stat"] = stat("13", "2097216")
	files(t, root, tree)
	r := fanotifyReader{host: Host{Proc: proc.FS(root)}, left: make(map[int]bool), found: make(map[string]fact.Fact)}
	if held := r.sample(t.Context()); len(held) != 2 {
		t.Fatalf("%v", held)
	}
	if a := (asking{thread{10, 10}, "8 9 8\n", time.Now()}); a.held(r.host) {
		t.Error("it has run since")
	}
	r.add([]thread{{10, 10}, {10, 10}})
	r.add(nil)
	if f := r.found["/group-10"]; len(r.found) != 1 || f.Value != 1 || f.Subject.Pid != 10 || r.held != 1 || r.n != 2 || !r.seen {
		t.Errorf("%+v", r)
	}
	for file := range tree {
		if strings.HasSuffix(file, "/wchan") {
			tree[file] = "0"
		}
	}
	files(t, root, tree)
	if fs := fanotifyWaits(t.Context(), r.host, []int{12}); len(fs) != 0 {
		t.Errorf("it is unknown where threads sleep: %+v", fs)
	}
	if fs := fanotifyWaits(t.Context(), r.host, nil); len(fs) != 1 || fs[0].Name != fact.Scanners {
		t.Errorf("no scanner: %+v", fs)
	}
}
