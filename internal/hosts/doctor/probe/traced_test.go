package probe

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/proc"
)

// What a tracer stops is bounded by its CPU time, and by how often the threads run. A sandbox that
// emulates system calls is left out, and so is a tracer that is not known.
func TestTraced(t *testing.T) {
	stat := func(pid, comm string) string {
		return pid + " (" + comm + ") S 1 0 0 0 -1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 5 0 0\n"
	}
	build := func(exe, tracer string) Host {
		root := t.TempDir()
		files(t, root, map[string]string{
			"7/stat": stat("7", "server"), "7/task/7/status": "TracerPid:\t" + tracer + "\n", "7/task/8/status": "TracerPid:\t" + tracer + "\n",
			"9/stat": stat("9", "strace"), "9/status": "Tgid:\t9\nTracerPid:\t0\n", "10/status": "Tgid:\t9\nTracerPid:\t0\n", "6/task/6/status": "TracerPid:\t0\n",
		})
		if err := os.Symlink(exe, filepath.Join(root, "9/exe")); err != nil {
			t.Fatal(err)
		}
		return Host{Proc: proc.FS(root)}
	}
	// In 10 s: the threads 7 and 8 run 20,000 and 10,000 times, 6 has no tracer, 5 runs seldom.
	grown := func(tracer thread, cpu time.Duration) map[thread]schedule {
		return map[thread]schedule{{7, 7}: {runs: 20_000}, {7, 8}: {runs: 10_000}, {6, 6}: {runs: 90_000}, {5, 5}: {runs: 50}, tracer: {ran: float64(cpu), runs: 100}}
	}
	main, second := thread{9, 9}, thread{9, 10}
	for name, c := range map[string]struct {
		exe, tracer string
		grown       map[thread]schedule
		stops       float64 // 0: no fact
	}{
		"busy":                      {"/usr/bin/strace", "9", grown(main, 9*time.Second), 3000},
		"another thread of it":      {"/usr/bin/dlv", "10", grown(second, 9*time.Second), 3000},
		"it has little time":        {"/usr/bin/strace", "9", grown(main, 50*time.Millisecond), 1000},
		"a debugger waits":          {"/usr/bin/gdb", "9", grown(main, time.Millisecond), 0},
		"gVisor":                    {"/usr/local/bin/runsc", "9", grown(main, 9*time.Second), 0},
		"the tracer has just begun": {"/usr/bin/strace", "9", grown(thread{4, 4}, 9*time.Second), 0},
		"no tracer":                 {"/usr/bin/strace", "0", grown(main, 9*time.Second), 0},
		"it has ended":              {"/usr/bin/strace", "77", grown(main, 9*time.Second), 0},
	} {
		fs := traced(build(c.exe, c.tracer), c.grown, 10*time.Second)
		if c.stops == 0 {
			if len(fs) > 0 {
				t.Errorf("%s: %+v", name, fs)
			}
			continue
		}
		if len(fs) != 2 || fs[0].Name != fact.Tracer || fs[0].Value != c.stops || fs[0].Subject.Pid != 9 || fs[0].Subject.Command != "strace" ||
			fs[1].Name != fact.Traced || fs[1].Value != 3000 || fs[1].Subject.Pid != 7 || fs[1].Subject.Device != "9" {
			t.Errorf("%s: %+v", name, fs)
		}
	}
}

// This kernel shows the thread that traces a process, and counts how often the process runs when it
// stops at each system call.
func TestTracer(t *testing.T) {
	runtime.LockOSThread() // ptrace(2) is for one thread
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(t.Context(), "dd", "if=/dev/zero", "of=/dev/null", "bs=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}()
	h := Host{Proc: proc.Host}
	var status unix.WaitStatus
	stop := func() {
		if _, err := unix.Wait4(pid, &status, 0, nil); err != nil || !status.Stopped() {
			t.Fatalf("wait: %v, %v", status, err)
		}
	}
	stop()
	runs := func() float64 {
		all, err := readTasks(t.Context(), h)
		if err != nil {
			t.Fatal(err)
		}
		return all[thread{pid, pid}].runs
	}
	before := runs()
	const stops = 400
	for range stops {
		if err := unix.PtraceSyscall(pid, 0); err != nil {
			t.Fatal(err)
		}
		stop()
	}
	if n := runs() - before; n < stops/2 { // a stop may end before another task runs
		t.Errorf("%v runs for %d stops", n, stops)
	}
	got, ok := tracerOf(h, thread{pid, pid})
	if want := (thread{os.Getpid(), unix.Gettid()}); !ok || got != want {
		t.Errorf("%v, want %v", got, want)
	}
	own := traced(h, map[thread]schedule{{pid, pid}: {runs: 9000}, got: {ran: 1e9}}, time.Second)
	if i := slices.IndexFunc(own, func(f fact.Fact) bool { return f.Name == fact.Tracer }); i < 0 || own[i].Subject.Pid != os.Getpid() || own[i].Value != 9000 {
		t.Errorf("%+v", own)
	}
	if got, ok := tracerOf(h, thread{os.Getpid(), unix.Gettid()}); ok {
		t.Errorf("this program is not traced: %v", got)
	}
}
