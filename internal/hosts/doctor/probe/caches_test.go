package probe

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/boottime"
	"holdfast/internal/platform/linux/proc"
)

// vmstat returns a vmstat with counters of drops.
func vmstat(pages, slab int) string {
	return fmt.Sprintf("nr_dirty 3\ndrop_pagecache %d\ndrop_slab %d\n", pages, slab)
}

// logged returns a record of the kernel's log at a time in microseconds.
func logged(level int, micros int64, text string) string {
	return fmt.Sprintf("%d,77,%d,-,caller=T7;%s\n SUBSYSTEM=none\n", level, micros, text)
}

// Drops are counted, and the kernel's log shows their processes: a thread of a process that runs, and
// processes that have ended, one of whose ids another has now.
func TestCaches(t *testing.T) {
	root := t.TempDir()
	h := Host{Proc: proc.FS(filepath.Join(root, "proc")), Kmsg: filepath.Join(root, "kmsg")}
	stat := func(tid, comm, began string) string {
		return tid + " (" + comm + ") S 1 0 0 0 -1 0" + strings.Repeat(" 0", 12) + " " + began + " 0 0\n"
	}
	before := logged(6, 1, "before (7): drop_caches: 3")
	files(t, root, map[string]string{
		"kmsg": before, "proc/vmstat": vmstat(26, 27), "proc/self/ns/.keep": "",
		"proc/7/stat": stat("7", "free memory", "5"), "proc/8/stat": stat("8", "thread", "5"), "proc/8/status": "Tgid:\t7\n",
		"proc/9/stat": stat("9", "later", "99999999999"),
	})
	if err := os.Symlink("pid:[4026531836]", filepath.Join(root, "proc/self/ns/pid")); err != nil {
		t.Fatal(err)
	}
	s, err := cachesProbe().Open(t.Context(), h, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	log := before + logged(6, 9e9, "free memory (7): drop_caches: 3") + logged(6, 9e9, "a (b) (8): drop_caches: 1") +
		logged(6, 9e9, "later (9): drop_caches: 2") + logged(6, 9e9, "sysctl (10): drop_caches: 3") +
		logged(14, 9e9, "forged (7): drop_caches: 3") + logged(6, 9e9, "eth0: link is up")
	files(t, root, map[string]string{"proc/vmstat": vmstat(29, 30), "kmsg": log})
	fs, err := s.Read(t.Context(), time.Now().Add(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	set := &fact.Set{}
	set.Add(fs...)
	pages, _ := set.Host(fact.CacheDrops)
	slab, _ := set.Host(fact.SlabDrops)
	by := set.Of(fact.DropsBy)
	if pages != 3 || slab != 3 || len(by) != 3 || by[0].Value != 2 || by[0].Subject.Pid != 7 || by[0].Subject.Command != "free memory" {
		t.Errorf("%+v", fs)
	}
	for _, ended := range []string{"later", "sysctl"} {
		if !slices.ContainsFunc(by, func(f fact.Fact) bool { return f.Subject.Command == ended && f.Subject.Pid == 0 && f.Value == 1 }) {
			t.Errorf("%s is not among %+v", ended, by)
		}
	}
	// A reading without a drop leaves out what the log has.
	files(t, root, map[string]string{"kmsg": log + logged(6, 9e9, "late (10): drop_caches: 3")})
	for _, drops := range []int{29, 30} {
		files(t, root, map[string]string{"proc/vmstat": vmstat(drops, 30)})
		fs, err := s.Read(t.Context(), time.Now().Add(time.Minute))
		if err != nil || len(fs) != 2 {
			t.Errorf("%+v, %v", fs, err)
		}
		time.Sleep(time.Millisecond)
	}
}

// Without counters drops are unknown, and without a log their processes.
func TestCachesUnknown(t *testing.T) {
	root := t.TempDir()
	h := Host{Proc: proc.FS(root), Kmsg: filepath.Join(root, "none")}
	files(t, root, map[string]string{"vmstat": "nr_dirty 3\n"})
	if _, err := cachesProbe().Open(t.Context(), h, time.Now()); err == nil {
		t.Error("an old kernel counts drops")
	}
	files(t, root, map[string]string{"vmstat": vmstat(1, 1)})
	s, err := cachesProbe().Open(t.Context(), h, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	files(t, root, map[string]string{"vmstat": vmstat(3, 1)})
	fs, err := s.Read(t.Context(), time.Now().Add(time.Second))
	if err != nil || len(fs) != 2 {
		t.Errorf("%+v, %v", fs, err)
	}
}

// This kernel's log is read from the moment at which it was opened, and a line that a program writes
// is not the kernel's.
func TestKernelLog(t *testing.T) {
	if os.Geteuid() != 0 && testing.Short() {
		t.Skip("-short: the kernel's log needs root")
	}
	to, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	write := func(text string) {
		if _, err := to.WriteString("<7>" + text); err != nil {
			t.Fatal(err)
		}
	}
	line := fmt.Sprintf("holdfast-test (%d): drop_caches: 3", os.Getpid())
	write(line)
	l := openKernelLog("/dev/kmsg")
	if l.fd < 0 {
		t.Fatal("the kernel's log cannot be read")
	}
	defer l.Close()
	if got := l.records("holdfast-test"); len(got) != 0 {
		t.Errorf("records from before: %q", got)
	}
	write(line)
	got := l.records("holdfast-test")
	if len(got) != 1 || !strings.HasSuffix(got[0], ";"+line) {
		t.Fatalf("%q", got)
	}
	if d, ok := parseDrop(got[0]); ok {
		t.Errorf("a program's line is the kernel's: %+v", d)
	}
	_, after, _ := strings.Cut(got[0], ",")
	d, ok := parseDrop("6," + after) // as if it were the kernel's
	if s, running := d.process(Host{Proc: proc.Host}, boottime.Now()); !ok || ownPids(proc.Host) != running || running && s.Pid != os.Getpid() {
		t.Errorf("%+v, %+v", d, s)
	}
	write(line)
	l.skip()
	if got := l.records("holdfast-test"); len(got) != 0 {
		t.Errorf("skipped, and read: %q", got)
	}
}

// What is no log is none.
func TestKernelLogOfAPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	l := openKernelLog(path)
	defer l.Close()
	if l.fd >= 0 {
		t.Error("a pipe has an end")
	}
}

func FuzzParseDrop(f *testing.F) {
	f.Add("6,1234,16201748602,-;sh (32256): drop_caches: 3")
	f.Add("6,1,2,-; (): drop_caches: ")
	f.Add(";): drop_caches: (1")
	f.Fuzz(func(t *testing.T, record string) {
		if d, ok := parseDrop(record); ok && !strings.Contains(record, fmt.Sprintf("%s (", d.command)) {
			t.Errorf("%q of %q", d.command, record)
		}
	})
}
