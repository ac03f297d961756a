package probe

import (
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/platform/linux/tracepoint"
)

// The interrupts of timers and of performance events are read by CPU, on x86 and arm64.
func TestInterrupts(t *testing.T) {
	for name, c := range map[string]struct {
		text           string
		timers, sample []float64
	}{
		"x86": {"            CPU0       CPU1\n  1:   7   8  IO-APIC   1-edge  i8042\nNMI:   9   9   Non-maskable interrupts\nLOC:   100   200   Local timer interrupts\nPMI:   3   4   Performance monitoring interrupts\nERR:   0\n",
			[]float64{100, 200}, []float64{3, 4}},
		"arm64": {"     CPU0  CPU1\n 11:  100  200  GICv3  27 Level  arch_timer\n 12:  1  2  GICv3  26 Level  arch_timer\n 23:  3  0  GICv3  23 Level  arm-pmu\nIPI0:  5  5  Rescheduling interrupts\n",
			[]float64{101, 202}, []float64{3, 0}},
	} {
		root := t.TempDir()
		files(t, root, map[string]string{"interrupts": c.text})
		got, err := readInterrupts(t.Context(), Host{Proc: proc.FS(root)})
		if err != nil || !equal(got.timers, c.timers) || !equal(got.samples, c.sample) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for _, text := range []string{"", "  CPU0\n 1:  7  IO-APIC  x\n", "  CPU0\nLOC:  x\n"} {
		root := t.TempDir()
		files(t, root, map[string]string{"interrupts": text})
		if got, err := readInterrupts(t.Context(), Host{Proc: proc.FS(root)}); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

func equal(a, b []float64) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// Many interrupts of performance events are a fact with the processes that have such events open;
// few are none, and neither is a CPU that came.
func TestPerformanceInterrupts(t *testing.T) {
	root := t.TempDir()
	h := Host{Proc: proc.FS(root)}
	files(t, root, map[string]string{"7/stat": "7 (perf) S 1 0 0 0 -1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 5 0 0\n", "8/stat": "8 (sh) S 1 0 0 0 -1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 5 0 0\n"})
	for _, fd := range []string{"7/fd/3", "7/fd/4", "8/fd/3"} {
		to := "anon_inode:[perf_event]"
		if fd == "8/fd/3" {
			to = "anon_inode:[eventpoll]"
		}
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(fd)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, filepath.Join(root, fd)); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		after []float64
		facts int
	}{"few": {[]float64{9, 40_000}, 1}, "many": {[]float64{9, 400_000}, 3}, "a CPU came": {[]float64{9, 400_000, 400_000}, 1}} {
		still := []float64{5, 5}
		fs, err := profilerFacts(h, interrupts{still, []float64{9, 0}}, interrupts{still, c.after}, 10*time.Second)
		if err != nil || len(fs) != c.facts {
			t.Errorf("%s: %+v, %v", name, fs, err)
		}
		if c.facts == 3 && (fs[1].Value != 40_000 || fs[2].Value != 2 || fs[2].Subject.Pid != 7 || fs[2].Subject.Command != "perf") {
			t.Errorf("%s: %+v", name, fs)
		}
	}
}

// What a process that is left out samples does not count.
func TestOwners(t *testing.T) {
	at := func(cpu, pid, n uint64) tracepoint.Place { return tracepoint.Place{Object: pid<<32 | cpu, Count: n} }
	most, by := byOwner([]tracepoint.Place{at(0, 7, 10), at(1, 7, 30), at(1, 7, 5), at(1, 0, 3), at(0, 9, 500), at(1, 8, 2)}, func(pid int) bool { return pid == 9 })
	if want := map[int]float64{7: 35, 8: 2}; most != 40 || !maps.Equal(by, want) {
		t.Errorf("%v, %v, want %v", most, by, want)
	}
}

// On this kernel a clock that samples often is found with its owner, which is this program: it is
// left out as a culprit.
func TestSampleTimers(t *testing.T) {
	if os.Geteuid() != 0 && testing.Short() {
		t.Skip("-short: BPF needs root")
	}
	h := Host{Proc: proc.Host, Sys: "/sys"}
	own := ownProgram(h)
	if !own(os.Getpid()) || own(1) {
		t.Errorf("this program: %v, init: %v", own(os.Getpid()), own(1))
	}
	before := performanceEvents("/proc/self/fd")
	attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CPU_CLOCK, Sample: 50_000, Sample_type: unix.PERF_SAMPLE_IP}
	attr.Size = uint32(unix.PERF_ATTR_SIZE_VER5)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fd, err := unix.PerfEventOpen(&attr, -1, 0, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if n := performanceEvents("/proc/self/fd") - before; n != 1 {
		t.Errorf("%d events are open", n)
	}
	symbols, err := h.LoadSymbols()
	if err != nil {
		t.Fatal(err)
	}
	function, _ := symbols.Addr("perf_swevent_hrtimer")
	owners, err := tracepoint.FindOwners("/sys/kernel/btf/vmlinux")
	if err != nil {
		t.Fatal(err)
	}
	c, err := tracepoint.CountClocks(function, owners)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); { // CPUs at rest may skip some
	}
	places, err := c.Read()
	if err != nil {
		t.Fatal(err)
	}
	_, by := byOwner(places, func(int) bool { return false })
	if by[os.Getpid()] < 100 {
		t.Errorf("of this process: %v", by)
	}
	_, fs, err := sampleTimers(h)
	for _, f := range fs {
		if f.Name == fact.ProfilerBy && f.Subject.Pid == os.Getpid() {
			t.Errorf("it names itself: %+v", f)
		}
	}
	if err != nil {
		t.Error(err)
	}
}
