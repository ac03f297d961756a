package tracepoint

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/perf/unwind"
)

// needRoot skips without root under -short, and fails otherwise.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 && testing.Short() {
		t.Skip("-short: BPF needs root")
	}
}

// tally counts n calls of getppid, and other calls of that time.
func tally(t *testing.T, n int) []Place {
	t.Helper()
	c, err := CountEvent("sys_enter", true)
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		unix.Getppid()
	}
	places, err := c.Read()
	if err := errors.Join(err, c.Close()); err != nil {
		t.Fatal(err)
	}
	return places
}

// ownPids reports whether this process is in the first pid namespace.
func ownPids() bool {
	var init unix.Stat_t
	return unix.Stat("/proc/self/ns/pid", &init) == nil && init.Ino == 0xEFFFFFFC
}

// Events are counted by process, with a path through the kernel.
func TestTally(t *testing.T) {
	needRoot(t)
	const n = 2000
	places := tally(t, n)
	symbols, err := LoadSymbols("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var ours uint64
	paths := make(map[string]bool)
	for _, p := range places {
		if ownPids() && p.Pid != os.Getpid() {
			continue
		}
		ours += p.Count
		if p.Command == "" || p.Cgroup == 0 {
			t.Errorf("a place without a name or a group: %+v", p)
		}
		for _, f := range symbols.Path(p.Stack) {
			paths[f] = true
		}
	}
	if ours < n {
		t.Errorf("%d calls were counted, %d were made", ours, n)
	}
	if !paths["do_syscall_64"] && !paths["el0_svc"] {
		t.Errorf("no path of a system call in %v", paths)
	}
}

// A place has the program's path of its first event: usually this function, and
// sometimes another thread of this program.
func TestTallyOfThePathThroughTheProgram(t *testing.T) {
	needRoot(t)
	if !ownPids() {
		t.Skip("in a pid namespace the kernel's pid of this process is not known")
	}
	for range 20 {
		for _, p := range tally(t, 1) {
			if p.Pid == os.Getpid() && slices.ContainsFunc(p.User, func(a uint64) bool {
				f := runtime.FuncForPC(uintptr(a))
				return f != nil && strings.HasSuffix(f.Name(), ".tally")
			}) {
				return
			}
		}
	}
	t.Error("in 20 tries tally was on no path through the program")
}

// Each place has a copy of its own program's stack: of this process, from the place where
// it entered the kernel.
func TestCopiesOfStacks(t *testing.T) {
	needRoot(t)
	if !unwind.Supported {
		t.Skip("stacks are not copied on this architecture")
	}
	seen := make(map[uint64]string) // by stack pointer and program counter
	copied, inside := 0, false
	for _, p := range tally(t, 100) {
		c := p.Copied
		if c == nil {
			continue
		}
		copied++
		id := c.Registers[7]<<16 ^ c.Registers[16]
		if before, twice := seen[id]; twice && before != p.Command {
			t.Errorf("%s and %s have the same stack at %x", before, p.Command, c.Registers[7])
		}
		seen[id] = p.Command
		f := runtime.FuncForPC(uintptr(c.Registers[16]))
		if p.Command == ownName(t) || f != nil && strings.HasPrefix(f.Name(), "internal/runtime/syscall") {
			inside = inside || f != nil && len(c.Memory) >= 1024
		}
	}
	if copied == 0 || !inside {
		t.Errorf("%d stacks were copied, this process's among them: %v", copied, inside)
	}
}

// Room for copies is bounded, and free makes new room.
func TestRoomForCopies(t *testing.T) {
	needRoot(t)
	if !unwind.Supported {
		t.Skip("stacks are not copied on this architecture")
	}
	var r running
	c, err := newCopies(&r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := c.room.Put(uint32(roomNext), uint64(1+maxCopies)); err != nil {
		t.Fatal(err)
	}
	if got := c.get(1); got != nil {
		t.Errorf("a copy that was never taken: %+v", got.Registers)
	}
	if err := c.free(); err != nil {
		t.Fatal(err)
	}
	var base uint64
	if err := c.room.Lookup(uint32(roomBase), &base); err != nil || base != 1+maxCopies {
		t.Errorf("the first copy in use is %d, %v", base, err)
	}
}

// Calls are counted by their numbers.
func TestCountCalls(t *testing.T) {
	needRoot(t)
	c, err := CountCalls()
	if err != nil {
		t.Fatal(err)
	}
	const n = 3000
	for range n {
		unix.Getppid()
	}
	places, err := c.Read()
	if err := errors.Join(err, c.Close()); err != nil {
		t.Fatal(err)
	}
	most := uint64(0)
	for _, p := range places {
		if p.Object == unix.SYS_GETPPID {
			most = max(most, p.Count)
		}
	}
	if most < n {
		t.Errorf("%d calls of getppid were made, %d counted", n, most)
	}
}

// A duration of 50 ms is in the matching bucket.
func TestLatency(t *testing.T) {
	needRoot(t)
	l, err := newLatency("sys_enter", "sys_exit", task(atKey))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	before, err := l.Read()
	if err != nil {
		t.Fatal(err)
	}
	pause := unix.NsecToTimespec(int64(50 * time.Millisecond))
	for begin := time.Now(); time.Since(begin) < 50*time.Millisecond; { // a signal may shorten a sleep
		if err := unix.Nanosleep(&pause, nil); err != nil && err != unix.EINTR {
			t.Fatal(err)
		}
	}
	after, err := l.Read()
	if err != nil {
		t.Fatal(err)
	}
	long := uint64(0)
	for bucket := 25; bucket < len(after); bucket++ { // from 34 ms on
		long += after[bucket] - before[bucket]
	}
	if long == 0 || after.Count() == 0 {
		t.Errorf("no pause of 50 ms in %v", after)
	}
}

// Processes that write to a disk are counted; those that read are not.
func TestCountWrites(t *testing.T) {
	needRoot(t)
	f := fileOnDisk(t)
	block := alignedBlock(t)
	if _, err := f.WriteAt(block, 0); err != nil {
		t.Fatal(err)
	}
	const n = 200
	count := func(do func() error) uint64 {
		c, err := CountWrites()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		runtime.LockOSThread() // the command's name is the thread's
		defer runtime.UnlockOSThread()
		for range n {
			if err := do(); err != nil {
				t.Fatal(err)
			}
		}
		places, err := c.Read()
		if err != nil {
			t.Fatal(err)
		}
		var ours uint64
		for _, p := range places {
			if p.Command == ownName(t) {
				ours += p.Count
			}
		}
		return ours
	}
	wrote := count(func() error { _, err := f.WriteAt(block, 0); return err })
	read := count(func() error { _, err := f.ReadAt(block, 0); return err })
	// A kernel worker issues requests that wait for a busy disk.
	if wrote < n/10 || read > n/20 {
		t.Errorf("%d writes and, while %d reads were made, %d writes", wrote, n, read)
	}
}

// ownName is this thread's.
func ownName(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/thread-self/comm")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// alignedBlock is a block that is aligned for O_DIRECT (open(2)).
func alignedBlock(t *testing.T) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(b); err != nil {
			t.Error(err)
		}
	})
	return b
}

// fileOnDisk opens a file on a disk with O_DIRECT.
func fileOnDisk(t *testing.T) *os.File {
	t.Helper()
	for _, dir := range []string{t.TempDir(), "/var/tmp"} { // the first may be in memory
		f, err := os.CreateTemp(dir, "writes-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(f.Name()) })
		f.Close()
		direct, err := os.OpenFile(f.Name(), os.O_RDWR|unix.O_DIRECT, 0)
		var st unix.Statfs_t
		if err == nil && unix.Statfs(dir, &st) == nil && st.Type != unix.TMPFS_MAGIC {
			t.Cleanup(func() { direct.Close() })
			return direct
		}
	}
	t.Fatal("there is no disk")
	return nil
}

func TestNoSuchTracepoint(t *testing.T) {
	needRoot(t)
	if _, err := CountEvent("no_such_tracepoint", false); err == nil || !strings.Contains(err.Error(), ErrNoTracepoint.Error()) {
		t.Errorf("error %v", err)
	}
}

// The others load: the kernel checks every instruction of a program.
func TestProgramsLoad(t *testing.T) {
	needRoot(t)
	for name, start := range map[string]func() (interface{ Close() error }, error){
		"work":    func() (interface{ Close() error }, error) { return CountWork(0xffffffff81000000) },
		"clocks":  func() (interface{ Close() error }, error) { return CountClocks(0xffffffff81000000, nil) },
		"locks":   func() (interface{ Close() error }, error) { return LockWaits() },
		"reclaim": func() (interface{ Close() error }, error) { return ReclaimLatency() },
		"writes":  func() (interface{ Close() error }, error) { return CountWrites() },
		"stops":   func() (interface{ Close() error }, error) { return CountStops("/sys/kernel/btf/vmlinux") },
		"block":   func() (interface{ Close() error }, error) { return BlockLatency() },
	} {
		m, err := start()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := m.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

const kallsyms = `ffffffff81000000 T _stext
ffffffff81000100 t first.isra.0
ffffffff81000200 T second
ffffffff81000200 T __alias_of_second
ffffffff81000300 T __traceiter_x
ffffffff82000000 D rtnl_mutex
ffffffff82000100 D other_variable
`

func TestSymbols(t *testing.T) {
	s, err := ParseSymbols(strings.NewReader(kallsyms), "rtnl_mutex")
	if err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[uint64]string{0xffffffff81000150: "first.isra.0", 0xffffffff81000200: "second", 0xffffffff8100021f: "second", 1: ""} {
		if got := s.Name(addr); got != want {
			t.Errorf("%x is %q, want %q", addr, got, want)
		}
	}
	if a, ok := s.Addr("rtnl_mutex"); !ok || a != 0xffffffff82000000 {
		t.Errorf("rtnl_mutex at %x, %v", a, ok)
	}
	for _, name := range []string{"second", "__alias_of_second"} {
		if a, ok := s.Addr(name); !ok || a != 0xffffffff81000200 {
			t.Errorf("%s at %x, %v", name, a, ok)
		}
	}
	if _, ok := s.Addr("other_variable"); ok {
		t.Error("a variable that was not requested was kept")
	}
	got := s.Path([]uint64{0xffffffff81000150, 0xffffffff81000310, 0xffffffff81000110, 0xffffffff81000210})
	if want := []string{"first", "second"}; !slices.Equal(got, want) {
		t.Errorf("path %v, want %v, without the functions of the tracepoint", got, want)
	}
}

func TestHiddenSymbols(t *testing.T) {
	if _, err := ParseSymbols(strings.NewReader("0000000000000000 T a\n0000000000000000 T b\n")); err != ErrHidden {
		t.Errorf("error %v", err)
	}
	if _, err := ParseSymbols(strings.NewReader("garbage\n")); err == nil {
		t.Error("garbage is accepted")
	}
}

func TestAddress(t *testing.T) {
	dir := t.TempDir()
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "kallsyms"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(kallsyms)
	if a, err := Address(dir, "second"); a != 0xffffffff81000200 || err != nil {
		t.Errorf("second at %x, %v", a, err)
	}
	if a, err := Address(dir, "cond"); err == nil {
		t.Errorf("a part of a name is a function at %x", a)
	}
	write("0000000000000000 T second\n")
	if _, err := Address(dir, "second"); err != ErrHidden {
		t.Errorf("error %v, want that the kernel hides its addresses", err)
	}
	write("garbage second\n")
	if a, err := Address(dir, "second"); err == nil {
		t.Errorf("garbage is an address, %x", a)
	}
	if _, err := Address(filepath.Join(dir, "none"), "second"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v of a host without a list of symbols", err)
	}
}

func TestQuantile(t *testing.T) {
	var h Histogram
	if h.Quantile(0.5) != 0 {
		t.Error("an empty histogram has a quantile")
	}
	h[10], h[20] = 99, 1
	if q := h.Quantile(0.5); q < 1024 || q > 2048 {
		t.Errorf("median %v", q)
	}
	if q := h.Quantile(1); q < 1<<20 || q > 1<<21 {
		t.Errorf("longest %v", q)
	}
}

// Taken counts are not returned again.
func TestTake(t *testing.T) {
	needRoot(t)
	c, err := CountEvent("sys_enter", true)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	own := unix.Gettid()
	count := func() (n uint64) {
		places, err := c.Take()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range places {
			if p.Pid == os.Getpid() || own != os.Getpid() && p.Count > 0 {
				n += p.Count
			}
		}
		return n
	}
	const n = 20000
	for range n {
		unix.Getppid()
	}
	if got := count(); got < n {
		t.Errorf("%d calls were taken, %d were made", got, n)
	}
	if got := count(); got >= n {
		t.Errorf("%d calls were taken once more", got)
	}
}

// The offsets of members are found, also in structures without a name.
func TestOffsets(t *testing.T) {
	timer := &btf.Struct{Name: "hrtimer"}
	hw := &btf.Struct{Members: []btf.Member{{Type: &btf.Union{Members: []btf.Member{{Name: "config", Type: &btf.Int{}}, {Type: &btf.Struct{Members: []btf.Member{{Name: "hrtimer", Type: timer, Offset: 8 * 16}}}}}}, Offset: 8 * 4}}}
	event := &btf.Struct{Members: []btf.Member{{Name: "state", Type: &btf.Int{}}, {Name: "hw", Type: hw, Offset: 8 * 100}}}
	if n, ok := offsetOf(event, []string{"hw", "hrtimer"}); n != 120 || !ok {
		t.Errorf("%d, %v", n, ok)
	}
	if n, ok := offsetOf(event, []string{"hw", "owner"}); ok {
		t.Errorf("a member that does not exist: %d", n)
	}
	if _, err := FindOwners("/nonexistent"); err == nil {
		t.Error("no error without the kernel's types")
	}
}
