package perf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/perf/unwind"
)

// roleOpen makes the test binary a process that opens a Sampler, with the privileges
// in its argument, and reports the result.
const roleOpen = "open"

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == roleOpen {
		os.Exit(openAs(os.Args[2]))
	}
	os.Exit(m.Run())
}

func openAs(what string) int {
	if what == "bare" { // root without capabilities: from an empty bounding set execve(2) adds none
		runtime.LockOSThread() // the set is a thread's
		for c := range uintptr(unix.CAP_LAST_CAP + 1) {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && err != unix.EINVAL { // unknown to this kernel
				fmt.Println(err)
				return 1
			}
		}
		fmt.Println(unix.Exec("/proc/self/exe", []string{os.Args[0], roleOpen, "now"}, os.Environ()))
		return 1
	}
	s, err := Open(99, false)
	if err != nil {
		hint := ""
		if h := (*hinted)(nil); errors.As(err, &h) {
			hint = h.Hint()
		}
		fmt.Printf("%v|%v|%s\n", errors.Is(err, ErrForbidden), err, hint)
		return 0
	}
	fmt.Println("it is open")
	s.Close()
	return 0
}

// needRoot skips without root under -short, and fails otherwise.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 && testing.Short() {
		t.Skip("-short: perf events of the whole host need root")
	}
}

// burn uses a CPU in user space and in the kernel.
func burn(over time.Duration) {
	for begin := time.Now(); time.Since(begin) < over; {
		for range 1000 {
			_ = unix.Getppid()
		}
	}
}

// This process is sampled in user space and in the kernel. A started program is
// recorded with its name and its mappings.
func TestSampler(t *testing.T) {
	needRoot(t)
	s, err := Open(499, true)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	var own, ownKernel, ownUser, lost int
	var child struct{ forked, named, mapped, ended bool }
	pid := 0
	look := func() {
		err := s.Read(func(r *Record) {
			switch {
			case r.Kind == Lost:
				lost += int(r.Count)
			case r.Kind == Sample && r.Pid == os.Getpid():
				own++
				if len(r.Kernel) > 0 {
					ownKernel++
				}
				if len(r.User) > 0 {
					ownUser++
					if unwind.Supported && (r.Stack == nil || r.Stack.Registers[16] != r.User[0] || len(r.Stack.Memory) == 0) {
						t.Errorf("a sample at %x has no copy of its stack", r.User[0])
					}
				}
				if s.Cgroups() && r.Cgroup == 0 {
					t.Error("a sample without a control group")
				}
				if i := slices.IndexFunc(append(r.Kernel, r.User...), func(a uint64) bool { return a >= contextMax }); i >= 0 {
					t.Errorf("a mark is returned as an address: %x, %x", r.Kernel, r.User)
				}
			case r.Kind == Fork && r.Pid == pid && r.Tid == pid:
				child.forked = r.Parent == os.Getpid()
			case r.Kind == Command && r.Pid == pid && r.Exec:
				child.named = r.Name == "true"
			case r.Kind == Mapping && r.Pid == pid && strings.HasSuffix(r.Name, "/true"):
				child.mapped = r.Len > 0 && r.Addr > 0 && r.Inode > 0
			case r.Kind == Exit && r.Pid == pid && r.Tid == pid:
				child.ended = true
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for begin := time.Now(); (ownKernel == 0 || ownUser == 0) && time.Since(begin) < time.Minute; {
		burn(200 * time.Millisecond)
		look()
	}
	cmd := exec.Command("/bin/true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	pid = cmd.Process.Pid
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	look()
	if own == 0 || ownKernel == 0 || ownUser == 0 || lost > 0 {
		t.Errorf("seen %d times, %d in the kernel, %d with a user stack; %d lost", own, ownKernel, ownUser, lost)
	}
	if !child.forked || !child.named || !child.mapped || !child.ended {
		t.Errorf("records of a started program: %+v", child)
	}
	burn(50 * time.Millisecond)
	after := 0
	if err := s.Read(func(*Record) { after++ }); err != nil || after > 0 {
		t.Errorf("%d records after the end, %v", after, err)
	}
}

// A new control group is recorded.
func TestGroups(t *testing.T) {
	needRoot(t)
	s, err := Open(1, false)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if !s.Cgroups() {
		t.Fatal("no ids of control groups: this kernel is older than 5.7")
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	root := hierarchy(t)
	dir, err := os.MkdirTemp(root, "perf-test-")
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	err = unix.Stat(dir, &st)
	if err := errors.Join(err, os.Remove(dir)); err != nil {
		t.Fatal(err)
	}
	told := ""
	if err := s.Read(func(r *Record) {
		if r.Kind == Group && r.Cgroup == st.Ino {
			told = r.Name
		}
	}); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(told, strings.TrimPrefix(dir, root)) || told == "" {
		t.Errorf("the group %s is recorded as %q", dir, told)
	}
}

// hierarchy is the mount point of the cgroup hierarchy with perf_event.
func hierarchy(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	unified := ""
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		switch {
		case strings.Contains(line, " - cgroup ") && strings.Contains(f[len(f)-1], "perf_event"):
			return f[4]
		case strings.Contains(line, " - cgroup2 "):
			unified = f[4]
		}
	}
	if unified == "" {
		t.Fatal("no control groups are mounted")
	}
	return unified
}

// A process without permission gets an error with the reason.
func TestForbidden(t *testing.T) {
	if os.Geteuid() != 0 {
		s, err := Open(99, false)
		if err == nil { // kernel.perf_event_paranoid may allow it
			s.Close()
		} else if !errors.Is(err, ErrForbidden) {
			t.Errorf("error %v", err)
		}
		return
	}
	for what, hint := range map[string]string{"unprivileged": "run it as root", "bare": "CAP_PERFMON"} {
		cmd := exec.Command("/proc/self/exe", roleOpen, what)
		if what == "unprivileged" {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", what, err, out)
		}
		if s := string(out); !strings.HasPrefix(s, "true|") || !strings.Contains(s, "perf_event_paranoid is") || !strings.Contains(s, hint) {
			t.Errorf("%s: %s", what, s)
		}
	}
}

func TestBadRate(t *testing.T) {
	for _, hz := range []int{-1, 0, 1000} {
		if s, err := Open(hz, false); err == nil {
			s.Close()
			t.Errorf("a rate of %d Hz is accepted", hz)
		}
	}
}

func TestParseList(t *testing.T) {
	got, err := parseList("0-2,5,7-8")
	if want := []int{0, 1, 2, 5, 7, 8}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "a", "2-1", "0-99999999", "-1"} {
		if got, err := parseList(bad); err == nil {
			t.Errorf("%q is parsed as %v", bad, got)
		}
	}
}

// sampleRecord is a sample as the kernel writes it.
func sampleRecord(addrs ...uint64) []byte {
	b := make([]byte, headerSize)
	binary.NativeEndian.PutUint32(b, unix.PERF_RECORD_SAMPLE)
	b = binary.NativeEndian.AppendUint32(b, 7)
	b = binary.NativeEndian.AppendUint32(b, 8)
	b = binary.NativeEndian.AppendUint64(b, 99) // time
	b = binary.NativeEndian.AppendUint64(b, uint64(len(addrs)))
	for _, a := range addrs {
		b = binary.NativeEndian.AppendUint64(b, a)
	}
	b = binary.NativeEndian.AppendUint64(b, 42) // group
	binary.NativeEndian.PutUint16(b[6:], uint16(len(b)))
	return b
}

func TestDecode(t *testing.T) {
	b := sampleRecord(contextKernel, 1, 2, contextUser, 3, contextMax, 4)
	var r Record
	if !r.decode(b, layout{cgroups: true}) || r.Pid != 7 || r.Tid != 8 || r.Cgroup != 42 || timeOf(b) != 99 {
		t.Errorf("%+v at %d", r, timeOf(b))
	}
	if !slices.Equal(r.Kernel, []uint64{1, 2}) || !slices.Equal(r.User, []uint64{3}) {
		t.Errorf("kernel %v, user %v", r.Kernel, r.User)
	}
	for n := headerSize; n < len(b); n++ {
		if r.decode(b[:n], layout{cgroups: true}) {
			t.Fatalf("a record of %d bytes is accepted as complete", n)
		}
	}
}

// A sample with a copy of the stack has the registers in the order of DWARF, and as much of
// the stack as the kernel could read. Those of kernel threads and 32-bit programs have none.
func TestDecodeStack(t *testing.T) {
	sample := func(abi uint64, used uint64) []byte {
		b := sampleRecord(contextUser, 3)
		b = binary.NativeEndian.AppendUint64(b[:len(b)-8], abi)
		if abi != 0 {
			for i := range uint64(17) {
				b = binary.NativeEndian.AppendUint64(b, 100+i)
			}
		}
		b = binary.NativeEndian.AppendUint64(b, 16)
		b = append(b, "0123456789abcdef"...)
		b = binary.NativeEndian.AppendUint64(b, used)
		return binary.NativeEndian.AppendUint64(b, 42) // group
	}
	has := layout{stacks: true, cgroups: true}
	b := sample(abi64, 10)
	var r Record
	if !r.decode(b, has) || r.Stack == nil || string(r.Stack.Memory) != "0123456789" || r.Cgroup != 42 {
		t.Fatalf("%+v", r)
	}
	if g := r.Stack.Registers; g[7] != 107 || g[16] != 108 || g[3] != 101 || g[8] != 109 {
		t.Errorf("registers %v", g)
	}
	for n := headerSize; n < len(b); n++ {
		if r.decode(b[:n], has) {
			t.Fatalf("a record of %d bytes is accepted as complete", n)
		}
	}
	for name, b := range map[string][]byte{"32 bits": sample(1, 10), "kernel": sample(0, 10), "more than its size": sample(abi64, 17)} {
		if !r.decode(b, has) || r.Stack != nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(sampleRecord(contextKernel, 1), true, false)
	for kind := range uint32(24) {
		b := make([]byte, 80)
		binary.NativeEndian.PutUint32(b, kind)
		f.Add(b, kind%2 == 0, kind%3 == 0)
	}
	f.Fuzz(func(t *testing.T, b []byte, cgroups, stacks bool) {
		if len(b) < headerSize {
			return
		}
		var r Record
		r.decode(b, layout{stacks, cgroups})
		if 8*(len(r.Kernel)+len(r.User)) > len(b) {
			t.Errorf("%d addresses out of %d bytes", len(r.Kernel)+len(r.User), len(b))
		}
		timeOf(b)
	})
}
