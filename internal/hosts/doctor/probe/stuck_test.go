package probe

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/proc"
)

// sleeperEnv makes the test binary sleep, most often in state D; its value is a role and a directory.
const sleeperEnv = "HOLDFAST_TEST_SLEEPER"

// TestSleeper is not a test: it is a process that sleeps.
func TestSleeper(t *testing.T) {
	role, dir, ok := strings.Cut(os.Getenv(sleeperEnv), " ")
	if !ok {
		return
	}
	switch role {
	case "fuse":
		server, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("files.example", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", server)); err != nil {
			t.Fatal(err)
		}
		var f unix.Statfs_t
		t.Fatal(unix.Statfs(dir, &f))
	case "write":
		f, err := os.OpenFile(filepath.Join(dir, "file"), os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.Write([]byte("late"))
		t.Fatal(err)
	case "vfork": // the child has a copy of the memory, and makes only raw calls
		second := unix.Timespec{Sec: 300}
		pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, unix.CLONE_VFORK|uintptr(unix.SIGKILL), 0, 0, 0, 0, 0)
		if pid == 0 && errno == 0 {
			_, _, _ = syscall.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0)
			_, _, _ = syscall.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&second)), 0, 0)
			_, _, _ = syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
		t.Fatal("the child has ended", errno)
	case "scanner":
		answerLate(t, dir, 25*time.Millisecond) // on a busy host the opener waits as long for a CPU
	case "opener":
		for {
			f, err := os.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			_ = f.Close() // it is opened again
		}
	case "zombies": // it never waits for its children
		for range 60 {
			if _, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(5 * time.Minute)
	case "sleep":
		time.Sleep(5 * time.Minute)
	}
}

// sleeper starts a process that ends with the test, in a mount namespace of its own.
func sleeper(t *testing.T, role, dir string) int {
	t.Helper()
	pid, _ := sleeperUntil(t, role, dir)
	return pid
}

// sleeperUntil starts such a process, which also ends with end.
func sleeperUntil(t *testing.T, role, dir string) (pid int, end func()) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestSleeper$")
	cmd.Env = append(os.Environ(), sleeperEnv+"="+role+" "+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Unshareflags: unix.CLONE_NEWNS}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end = func() {
		_ = cmd.Process.Kill() // it has ended already if the test has failed
		_ = cmd.Wait()         // killed
	}
	t.Cleanup(end)
	return cmd.Process.Pid, end
}

// waitFor waits until a thread of a process is in a function of the kernel, in state D.
func waitFor(t *testing.T, pid int, function string) {
	t.Helper()
	for range 1000 {
		tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		for _, d := range tasks {
			tid, _ := strconv.Atoi(d.Name())
			text, _ := read(thread{pid, tid}.dir(Host{Proc: proc.Host}) + "/stat")
			where, _ := read(thread{pid, tid}.dir(Host{Proc: proc.Host}) + "/wchan")
			if s, err := proc.ParseStat([]byte(text)); err == nil && s.State == 'D' && strings.Contains(where, function) {
				return
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("process %d does not wait in %q", pid, function)
}

// The probe names tasks that wait for a server and for a frozen file system, with the mount and
// the file. It leaves out a parent of a vfork and a frozen group, though both are in state D.
func TestStuckTasks(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("run the test as root: it mounts file systems")
	}
	h := (&fixture{t: t}).thisHost()
	dead := t.TempDir()
	disk, thaw := frozenDisk(t)
	defer thaw() // its writer cannot be killed before
	fuse, vfork, idle := sleeper(t, "fuse", dead), sleeper(t, "vfork", "-"), sleeper(t, "sleep", "-")
	freeze(t, h, idle)
	writer := sleeper(t, "write", disk)
	waitFor(t, fuse, "fuse")
	waitFor(t, vfork, "clone")
	waitFor(t, writer, "percpu_rwsem")

	for _, p := range []Probe{stuckProbe(), standingStuckProbe()} {
		s, err := p.Open(t.Context(), h, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if r, ok := s.(*stuckReader); !ok {
			t.Fatal("another Series")
		} else if p.Rare { // as if the load average was high at a reading
			if err := r.scan(t.Context(), time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		facts, err := s.Read(t.Context(), time.Now().Add(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		of := func(pid int) *fact.Fact {
			i := slices.IndexFunc(facts, func(f fact.Fact) bool { return f.Name == fact.Stuck && f.Subject.Pid == pid })
			if i < 0 {
				return nil
			}
			return &facts[i]
		}
		if f := of(fuse); f == nil || f.Value != 1 || f.Over < 59 || f.Subject.Device != "fuse files.example on "+dead || !fact.WaitOf(f.Subject.Kernel).Known() {
			t.Errorf("the wait for a server is not named: %+v", f)
		}
		if f := of(writer); f == nil || !fact.WaitOf(f.Subject.Kernel).Frozen || !strings.Contains(f.Subject.Device, " on "+disk+", file "+disk+"/file") {
			t.Errorf("the wait for the frozen file system is not named: %+v", f)
		}
		if of(vfork) != nil || of(idle) != nil {
			t.Errorf("a parent of a vfork (%d), or a frozen process (%d), is named: %+v", vfork, idle, facts)
		}
	}
}

// A thread that has run between two readings, or that is another one by now, is not stuck.
func TestNotStuck(t *testing.T) {
	h := (&fixture{t: t}).thisHost()
	vfork := sleeper(t, "vfork", "-")
	waitFor(t, vfork, "clone")
	s, err := stuckProbe().Open(t.Context(), h, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	r, ok := s.(*stuckReader)
	if !ok || len(r.asleep) == 0 {
		t.Fatalf("the thread is not seen: %+v", s)
	}
	for at, a := range r.asleep {
		if after, ok := sleeping(h, at); at.pid == vfork && (!ok || after.ran != a.ran || after.start != a.start) {
			t.Errorf("the thread has run: %+v, %+v", a, after)
		}
		a.ran = "0 0 0"
		r.asleep[at] = a
	}
	facts, err := s.Read(t.Context(), time.Now())
	if err != nil || len(facts) != 1 || facts[0].Name != fact.StuckSeen || facts[0].Value != 0 {
		t.Errorf("%+v, %v", facts, err)
	}
}

// Without the freezer's files, a process in one of its groups may be frozen.
func TestUnknownFreezer(t *testing.T) {
	for text, want := range map[string]bool{
		"4:freezer:/docker/a\n0::/docker/a\n": true, "4:freezer:/\n0::/docker/a\n": false, "0::/docker/a\n": false, "": false,
	} {
		root := t.TempDir()
		files(t, root, map[string]string{"7/cgroup": text})
		if got := frozen(Host{Proc: proc.FS(root)}, 7); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
	if !frozen(Host{Proc: proc.FS(t.TempDir())}, 7) {
		t.Error("a process that has ended counts")
	}
}

// An agent's scans take a small share of the time, however long each is.
func TestScans(t *testing.T) {
	root := t.TempDir()
	files(t, root, map[string]string{"loadavg": "9.00 3 3 1/80 11206\n"})
	r := &stuckReader{host: Host{Proc: proc.FS(root)}, standing: true}
	now := time.Now()
	if _, err := r.Read(t.Context(), now); err != nil || !r.due.After(now) {
		t.Errorf("the next scan is due at %v, error %v", r.due, err)
	}
	r.due = now.Add(time.Hour)
	files(t, root, map[string]string{"7/task/7/stat": "7 (df) D 1" + strings.Repeat(" 0", 18) + " 5\n", "7/task/7/schedstat": "1 2 3\n", "7/cgroup": "0::/docker/a\n"})
	for i, want := range []struct{ asleep, facts int }{{0, 1}, {1, 0}, {1, 2}} { // not due, due, and again
		if i == 1 {
			r.due = now
		}
		facts, err := r.Read(t.Context(), now.Add(time.Duration(i+1)*time.Minute))
		if err != nil || len(r.asleep) != want.asleep || len(facts) != want.facts {
			t.Errorf("reading %d: %+v, %+v, %v", i, r.asleep, facts, err)
		}
	}
}

// An agent reads the threads only while the load average is higher than what runs.
func TestLoaded(t *testing.T) {
	for text, want := range map[string]bool{
		"0.20 0.18 0.12 1/80 11206\n": false, "0.70 0.18 0.12 1/80 11206\n": true,
		"3.90 3 3 5/80 11206\n": false, "12.00 3 3 5/80 11206\n": true, "": true,
	} {
		root := t.TempDir()
		if err := os.WriteFile(filepath.Join(root, "loadavg"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := loaded(Host{Proc: proc.FS(root)}); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// freeze freezes a process with cgroup v1, if this host has it, until the test ends. With v2, a
// frozen process is not in state D.
func freeze(t *testing.T, h Host, pid int) {
	t.Helper()
	for _, m := range h.Groups {
		if !slices.Contains(m.Controllers, "freezer") {
			continue
		}
		dir := filepath.Join(m.Point, fmt.Sprintf("holdfast-test-%d", pid))
		write := func(file, text string) {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { // before the process is killed
			write("freezer.state", "THAWED")
			if err := os.WriteFile(filepath.Join(m.Point, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
				t.Error(err)
			}
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		})
		write("cgroup.procs", strconv.Itoa(pid))
		write("freezer.state", "FROZEN")
		waitFor(t, pid, "")
	}
}

// frozenDisk mounts a small file system with a file and freezes it until it is thawed.
func frozenDisk(t *testing.T) (dir string, thaw func()) {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	dir = t.TempDir()
	for _, argv := range [][]string{{"truncate", "-s", "16M", image}, {"mkfs.ext4", "-q", image}, {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", argv, err, out)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	// FIFREEZE and FITHAW of include/uapi/linux/fs.h
	if err := unix.IoctlSetInt(int(d.Fd()), 0xc0045877, 0); err != nil {
		t.Fatal(err)
	}
	return dir, func() {
		if err := unix.IoctlSetInt(int(d.Fd()), 0xc0045878, 0); err != nil {
			t.Error(err)
		}
		d.Close()
	}
}
