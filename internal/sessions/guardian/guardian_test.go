package guardian_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/boottime"
	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/sessions/guardian"
	"holdfast/test/poll"
)

// sleeper is a process that a test stops.
func sleeper(t *testing.T) *pidfd.Process {
	t.Helper()
	cmd := exec.Command("sleep", "inf")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := pidfd.Open(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	})
	return p
}

// arm is Arm with time for the guardian of a test on busy CPUs.
func arm(g *guardian.Guardian, p guardian.Plan) (*guardian.Armed, error) {
	p.Wait = 20 * time.Second
	return g.Arm(p)
}

// A guardian that does not run at the moment counts as hung, unless the plan may wait.
func TestWait(t *testing.T) {
	g, p := start(t, t.TempDir()), sleeper(t)
	pid := g.Pid()
	pause := func() {
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		poll.Until(t, "all threads of the guardian are stopped", func() bool { return allStopped(t, pid) })
	}
	pause()
	resume := time.AfterFunc(time.Second, func() { _ = unix.Kill(pid, unix.SIGCONT) })
	defer resume.Stop()
	armed, err := arm(g, continuing(time.Hour, p))
	if err == nil {
		err = armed.Disarm()
	}
	if err != nil {
		t.Errorf("a plan that may wait: %v", err)
	}
	pause() // until Arm kills it
	if _, err := g.Arm(continuing(time.Hour, p)); err == nil {
		t.Error("a guardian that does not answer is no error")
	}
}

func stop(t *testing.T, p *pidfd.Process) {
	t.Helper()
	if err := p.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the process is stopped", func() bool { return stateOf(p) == 'T' })
}

// allStopped reports whether each thread of a process is stopped. A thread that runs on another CPU
// stops a moment after kill(2) returns.
func allStopped(t *testing.T, pid int) bool {
	t.Helper()
	threads, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "task"))
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		tid, err := strconv.Atoi(thread.Name())
		if err != nil {
			t.Fatal(err)
		}
		if s, err := proc.Host.Stat(tid); err != nil || s.State != 'T' {
			return false
		}
	}
	return len(threads) > 0
}

func stateOf(p *pidfd.Process) byte {
	s, err := proc.Host.Stat(p.Pid())
	if err != nil {
		return 0
	}
	return s.State
}

func start(t *testing.T, dir string) *guardian.Guardian {
	t.Helper()
	g, err := guardian.Start(guardianArgv(dir), slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

func continuing(deadline time.Duration, ps ...*pidfd.Process) guardian.Plan {
	return guardian.Plan{
		Name: "a test", Deadline: boottime.Now().Add(deadline),
		Undo: []guardian.Undo{{Kind: guardian.Continue, Processes: ps}},
	}
}

func TestDisarmedPlanIsNotCarriedOut(t *testing.T) {
	dir := t.TempDir()
	g, p := start(t, dir), sleeper(t)
	armed, err := arm(g, continuing(time.Hour, p))
	if err != nil {
		t.Fatal(err)
	}
	if files, _ := filepath.Glob(dir + "/undo-*"); len(files) != 1 {
		t.Errorf("files while armed: %v", files)
	}
	stop(t, p)
	if err := armed.Disarm(); err != nil {
		t.Fatal(err)
	}
	<-armed.Done()
	if err := armed.Disarm(); !errors.Is(err, guardian.ErrUndone) {
		t.Errorf("disarmed twice: %v", err)
	}
	if err := g.Close(); err != nil { // the guardian's end would carry out an armed plan
		t.Fatal(err)
	}
	if s := stateOf(p); s != 'T' {
		t.Errorf("the process is in state %c", s)
	}
	if files, _ := filepath.Glob(dir + "/*"); len(files) != 0 {
		t.Errorf("files left: %v", files)
	}
}

// A stalled starter stops a process after the guardian has continued it. The guardian
// continues it again, until the plan is disarmed.
func TestExpiredPlanIsCarriedOutAgain(t *testing.T) {
	g, p := start(t, t.TempDir()), sleeper(t)
	standing, err := arm(g, continuing(time.Hour, p))
	if err != nil {
		t.Fatal(err)
	}
	if err := standing.Check(); err != nil {
		t.Errorf("the plan does not stand: %v", err)
	}
	if err := standing.Disarm(); err != nil {
		t.Error(err)
	}
	armed, err := arm(g, continuing(0, p))
	if err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the deadline has passed", func() bool { return errors.Is(armed.Check(), guardian.ErrUndone) })
	for range 3 {
		if err := p.Signal(unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond) // the signal takes effect when the process runs next
		poll.Until(t, "the process runs", func() bool { return stateOf(p) != 'T' })
	}
	if err := armed.Disarm(); !errors.Is(err, guardian.ErrUndone) {
		t.Errorf("disarmed: %v", err)
	}
	stop(t, p)
	time.Sleep(300 * time.Millisecond) // three times againAfter
	if s := stateOf(p); s != 'T' {
		t.Errorf("the guardian goes on after the plan was disarmed: state %c", s)
	}
}

// A starter that cannot undo makes the guardian do it.
func TestCarryOut(t *testing.T) {
	g, p := start(t, t.TempDir()), sleeper(t)
	armed, err := arm(g, continuing(time.Hour, p))
	if err != nil {
		t.Fatal(err)
	}
	stop(t, p)
	if err := armed.CarryOut(); err != nil {
		t.Fatal(err)
	}
	<-armed.Done()
	if s := stateOf(p); s == 'T' {
		t.Errorf("the process is in state %c", s)
	}
}

// More descriptors than fit into one message.
func TestManyProcesses(t *testing.T) {
	g, p := start(t, t.TempDir()), sleeper(t)
	ps := make([]*pidfd.Process, 600)
	for i := range ps {
		ps[i] = p
	}
	ps[599] = sleeper(t)
	if _, err := arm(g, continuing(time.Hour, ps...)); err != nil {
		t.Fatal(err)
	}
	stop(t, p)
	stop(t, ps[599])
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if p, q := stateOf(p), stateOf(ps[599]); p == 'T' || q == 'T' {
		t.Errorf("states %c, %c", p, q)
	}
}

// A killed guardian is replaced. A guardian ignores the signals of a terminal and of
// a service manager.
func TestGuardianIsHardToDisturb(t *testing.T) {
	g, p := start(t, t.TempDir()), sleeper(t)
	first := g.Pid()
	for _, s := range []unix.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP} {
		if err := unix.Kill(first, s); err != nil {
			t.Fatal(err)
		}
	}
	armed, err := arm(g, continuing(time.Hour, p))
	if err != nil || g.Pid() != first {
		t.Fatalf("it did not survive: %v", err)
	}
	stop(t, p)
	if err := unix.Kill(first, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-armed.Done() // the starter has undone the plan
	if s := stateOf(p); s == 'T' {
		t.Errorf("the process is in state %c", s)
	}
	if _, err := arm(g, continuing(time.Hour, p)); err != nil || g.Pid() == first || g.Pid() == 0 {
		t.Errorf("not replaced: %v", err)
	}
}

// An agent has a guardian again before it needs one.
func TestGuardianIsReplaced(t *testing.T) {
	g := start(t, t.TempDir())
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	for range 2 {
		first := g.Pid()
		if err := unix.Kill(first, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		poll.Until(t, "there is another guardian", func() bool { pid := g.Pid(); return pid != 0 && pid != first })
	}
	end()
	if err := <-ended; err != nil || g.Pid() != 0 {
		t.Errorf("at its end: %v, guardian %d", err, g.Pid())
	}
}

func TestBadPlansAreRefused(t *testing.T) {
	g, p := start(t, t.TempDir()), sleeper(t)
	for name, plan := range map[string]guardian.Plan{
		"no deadline": {Undo: []guardian.Undo{{Kind: guardian.Continue, Processes: []*pidfd.Process{p}}}},
		"no kind":     {Deadline: 1, Undo: []guardian.Undo{{Processes: []*pidfd.Process{p}}}},
		"mixed":       {Deadline: 1, Undo: []guardian.Undo{{Kind: guardian.Restore, Processes: []*pidfd.Process{p}}}},
	} {
		if _, err := g.Arm(plan); err == nil {
			t.Errorf("%s: armed", name)
		}
	}
	p.Close()
	if _, err := g.Arm(continuing(time.Hour, p)); err == nil {
		t.Error("armed with a closed handle")
	}
}

// Start fails with a command that is no guardian, and leaves nothing behind.
func TestNoGuardianThere(t *testing.T) {
	for _, argv := range [][]string{{"/bin/true"}, {"/no/such/file"}} {
		if g, err := guardian.Start(argv, slog.Default()); err == nil {
			g.Close()
			t.Errorf("%v: started", argv)
		}
	}
}

// State files that are cut off, of another boot, or of reused pids.
func TestRecoverIsCareful(t *testing.T) {
	dir, p := t.TempDir(), sleeper(t)
	stop(t, p)
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("undo-1-1.json", `{"boot_id":"`)
	write("undo-1-2.json", `{"boot_id":"another","undo":[{"kind":"continue","processes":[{"pid":`+strconv.Itoa(p.Pid())+`,"start":`+strconv.Itoa(int(p.Start()))+`}]}]}`)
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	write("undo-1-3.json", `{"boot_id":"`+strings.TrimSpace(string(boot))+`","undo":[{"kind":"continue","processes":[{"pid":`+strconv.Itoa(p.Pid())+`,"start":1}]}]}`)
	if n, err := guardian.Recover(dir); n != 1 || err != nil {
		t.Errorf("recovered %d, %v", n, err)
	}
	if s := stateOf(p); s != 'T' {
		t.Errorf("an unrelated process with the same pid was continued: %c", s)
	}
	if files, _ := filepath.Glob(dir + "/*"); len(files) != 0 {
		t.Errorf("files left: %v", files)
	}
}
