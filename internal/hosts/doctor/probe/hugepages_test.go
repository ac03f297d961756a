package probe

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/proc"
)

// The CPU time of khugepaged is a fact, also after it was started anew with another pid. Without the
// thread its passes are, and while huge pages are off it does not run.
func TestHugepages(t *testing.T) {
	root := t.TempDir()
	h := Host{Proc: proc.FS(filepath.Join(root, "proc")), Sys: filepath.Join(root, "sys")}
	stat := func(pid, flags string) string {
		return pid + " (khugepaged) S 2 0 0 0 -1 " + flags + strings.Repeat(" 0", 12) + " 5 0 0\n"
	}
	const dir = "sys/kernel/mm/transparent_hugepage/"
	files(t, root, map[string]string{
		dir + "enabled": "always [madvise] never\n", dir + "khugepaged/full_scans": "10\n", dir + "khugepaged/pages_collapsed": "100\n",
		dir + "khugepaged/scan_sleep_millisecs": "0\n", dir + "khugepaged/pages_to_scan": "65536\n",
		"proc/vmstat": "thp_fault_alloc 100\n",
		"proc/6/stat": stat("6", "4194304"), "proc/6/schedstat": "9 9 9\n", // a process
		"proc/38/stat": stat("38", "2097216"), "proc/38/schedstat": "1000000000 5 5\n",
	})
	begin := time.Now()
	s, err := hugepagesProbe().Open(t.Context(), h, begin)
	if err != nil {
		t.Fatal(err)
	}
	at := begin
	next := func(change map[string]string) *fact.Set {
		t.Helper()
		files(t, root, change)
		at = at.Add(10 * time.Second)
		fs, err := s.Read(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		set := &fact.Set{}
		set.Add(fs...)
		return set
	}
	want := func(set *fact.Set, values map[string]float64) {
		t.Helper()
		for name, v := range values {
			if got, ok := set.Host(name); !ok || got != v {
				t.Errorf("%s is %v, want %v", name, got, v)
			}
		}
		if len(set.Facts) != len(values) {
			t.Errorf("%+v", set.Facts)
		}
	}
	set := next(map[string]string{"proc/38/schedstat": "6000000000 5 5\n", dir + "khugepaged/full_scans": "410\n", dir + "khugepaged/pages_collapsed": "130\n", "proc/vmstat": "thp_fault_alloc 5100\n"})
	want(set, map[string]float64{fact.HugeSeen: 1, fact.HugeCPU: 0.5, fact.HugeScans: 40, fact.HugeBuilt: 3, fact.HugeFaults: 500, fact.HugeSleep: 0, fact.HugeBatch: 65536})
	want(next(map[string]string{dir + "enabled": "always madvise [never]\n"}), map[string]float64{fact.HugeSeen: 1})
	if err := os.RemoveAll(filepath.Join(root, "proc/38")); err != nil {
		t.Fatal(err)
	}
	// Huge pages of one size are on, and the thread has another pid.
	next(map[string]string{dir + "hugepages-2048kB/enabled": "[always] inherit madvise never\n", "proc/99/stat": stat("99", "2097216"), "proc/99/schedstat": "1000000000 5 5\n"})
	set = next(map[string]string{"proc/99/schedstat": "2000000000 5 5\n"})
	want(set, map[string]float64{fact.HugeSeen: 1, fact.HugeCPU: 0.1, fact.HugeScans: 0, fact.HugeBuilt: 0, fact.HugeFaults: 0, fact.HugeSleep: 0, fact.HugeBatch: 65536})
	if err := os.RemoveAll(filepath.Join(root, "proc/99")); err != nil { // another pid namespace
		t.Fatal(err)
	}
	set = next(nil)
	want(set, map[string]float64{fact.HugeSeen: 1, fact.HugeScans: 0, fact.HugeBuilt: 0, fact.HugeFaults: 0, fact.HugeSleep: 0, fact.HugeBatch: 65536})
	if err := os.RemoveAll(filepath.Join(root, dir, "khugepaged")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Read(t.Context(), at.Add(time.Second)); err == nil {
		t.Error("nothing is visible, and it is no error")
	}
}

// This kernel's khugepaged is found if it runs and its threads are visible.
func TestHugepagesHere(t *testing.T) {
	h := Host{Proc: proc.Host, Sys: "/sys"}
	if !hugeEnabled("/sys"+hugeDir) || !ownPids(h.Proc) {
		if testing.Short() {
			t.Skip("-short: khugepaged does not run, or is not visible")
		}
		t.Fatal("khugepaged does not run, or is not visible")
	}
	k := &khugepaged{}
	s, err := k.read(t.Context(), h)
	if err != nil || k.pid == 0 || s["cpu"] <= 0 {
		t.Fatalf("%d: %v, %v", k.pid, s, err)
	}
	if again, err := k.read(t.Context(), h); err != nil || again["cpu"] < s["cpu"] {
		t.Errorf("%v after %v: %v", again, s, err)
	}
}

func BenchmarkHugepages(b *testing.B) {
	h := Host{Proc: proc.Host, Sys: "/sys"}
	for b.Loop() {
		k := &khugepaged{}
		if _, err := k.read(b.Context(), h); err != nil {
			b.Fatal(err)
		}
	}
}
