package kill_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/sessions/guardian"
	"holdfast/internal/sessions/kill"
	"holdfast/internal/sessions/kill/killtest"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// TestMain also runs a guardian: tests start this binary as one.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "guardian" {
		unix.Exit(guardian.Main(os.Args[2], slog.Default())) // os.Exit takes a second under -race
	}
	os.Exit(labtest.Main(m))
}

// host is an engine with the containers of one test.
type host struct {
	t   *testing.T
	lab labtest.Daemon
	engine.Engine
	network string // the mode of its containers' network
}

// newHost returns a host whose containers join one network, like those of sessions. Docker 20.10
// may deadlock when several containers with networks of their own end at once
// (github.com/moby/moby/issues/46661).
func newHost(t *testing.T) *host {
	t.Helper()
	daemon, e := labtest.Either(t)
	h := &host{t: t, lab: daemon, Engine: e, network: "none"}
	h.network = "container:" + h.start("", "sleep inf")
	return h
}

// start starts a container until the end of the test.
func (h *host) start(pidMode, script string) (id string) {
	h.t.Helper()
	id, err := h.Create(h.t.Context(), engine.Spec{
		Image: labtest.Busybox, Command: []string{"/bin/sh", "-c", script},
		Network: h.network, PIDMode: pidMode, PIDs: 200,
	})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute) // an engine that hangs fails the test
		defer cancel()
		if err := h.Remove(ctx, id); err != nil {
			h.t.Error(err)
		}
	})
	if err := h.Start(h.t.Context(), id); err != nil {
		h.t.Fatal(err)
	}
	return id
}

// run starts a container and opens it.
func (h *host) run(pidMode, script string) *kill.Target {
	h.t.Helper()
	id := h.start(pidMode, script)
	c, err := h.Inspect(h.t.Context(), id)
	if err != nil {
		h.t.Fatal(err)
	}
	target, err := kill.Open(id, c.Name, c.Pid)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(target.Close)
	return target
}

// exec leaves a script running in the container, started from outside. It returns
// when the script itself runs: in a shared pid namespace, no kill finds a process
// that the engine has started and not yet put into the container's control group.
func (h *host) exec(t *kill.Target, script string) {
	h.t.Helper()
	ended := make(chan error, 1)
	// In a shared pid namespace an engine may never report the end of a command.
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, err := h.Exec(ctx, t.ID, engine.Exec{
			Command: []string{"/bin/sh", "-c", ": >/runs; " + script}, Stdout: io.Discard, Stderr: io.Discard,
		})
		ended <- err
	}()
	h.t.Cleanup(func() { cancel(); <-ended })
	runs := fmt.Sprintf("/proc/%d/root/runs", t.Pid())
	poll.Until(h.t, "the command runs", func() bool { _, err := os.Stat(runs); return err == nil })
}

// mustDie checks that the report has all targets as dead, and that they are dead.
func mustDie(t *testing.T, r holdfast.KillReport, targets ...*kill.Target) {
	t.Helper()
	for _, l := range r.Left {
		t.Errorf("left: %+v", l)
	}
	for _, x := range targets {
		if !slices.Contains(r.Dead, x.ID) {
			t.Errorf("%s is not reported dead: %+v", x, r)
		}
		if ps := killtest.Processes(t, x.ID); len(ps) > 0 {
			t.Errorf("%s has processes left: %q", x, ps)
		}
		if x.Alive() {
			t.Errorf("%s is alive", x)
		}
	}
}

// busy is a container with workers, a daemon that has left the session, and a
// bounded storm of forks.
const busy = `sleep inf & sleep inf &
setsid sh -c 'while :; do for i in 1 2 3 4; do sleep 0.02 & done; wait; done' &
(setsid sleep inf &)
wait`

func TestContainersWithTheirOwnPidNamespace(t *testing.T) {
	h := newHost(t)
	var targets []*kill.Target
	for range 4 {
		targets = append(targets, h.run("", busy))
	}
	h.exec(targets[0], "sleep inf & wait")
	for _, x := range targets {
		if !x.Alone() || x.Shim() == nil || len(x.Groups()) == 0 || !x.Alive() {
			t.Fatalf("%s: alone %v, shim %v, groups %v", x, x.Alone(), x.Shim(), x.Groups())
		}
	}
	mustDie(t, new(kill.Killer).Kill(t.Context(), targets), targets...)
	for _, x := range targets {
		poll.Until(h.t, "the engine knows", func() bool {
			c, err := h.Inspect(t.Context(), x.ID)
			return err == nil && !c.Running()
		})
	}
	mustDie(t, new(kill.Killer).Kill(t.Context(), targets), targets...) // dead ones again
}

// trees returns the cgroup hierarchies that the engine puts containers into.
func trees(t *testing.T) []string {
	var names []string
	for _, g := range newHost(t).run("", "sleep inf").Groups() {
		if g.V2 {
			names = append(names, "unified")
		} else {
			names = append(names, "v1")
		}
	}
	if len(names) == 0 {
		t.Fatal("a container is in no control group")
	}
	return names
}

// Containers in a shared pid namespace outlive their init. The unified hierarchy
// tests cgroup.kill, the v1 hierarchy freeze–kill–thaw. On a hybrid host, with
// containers in both, the plain case uses both.
func TestContainersInASharedPidNamespace(t *testing.T) {
	for _, tree := range append([]string{"all"}, trees(t)...) {
		t.Run(tree, func(t *testing.T) {
			h := newHost(t)
			other := h.run("", "sleep inf & wait")
			targets := []*kill.Target{
				h.run("host", busy),
				h.run("container:"+other.ID, busy),
				h.run("container:"+other.ID, "sleep inf"),
			}
			h.exec(targets[0], "sleep inf & wait")
			h.exec(targets[1], "setsid sleep inf & sleep inf")
			for _, x := range targets {
				if x.Alone() {
					t.Errorf("%s counts as alone in its pid namespace", x)
				}
				if tree != "all" && x.Only(tree == "unified") != 1 {
					t.Fatalf("%s is not in one group of the %s tree", x, tree)
				}
			}
			mustDie(t, new(kill.Killer).Kill(t.Context(), targets), targets...)
			if !other.Alive() {
				t.Error("the container whose pid namespace was shared died too")
			}
			mustDie(t, new(kill.Killer).Kill(t.Context(), []*kill.Target{other}), other)
		})
	}
}

// On v1 a frozen process does not take SIGKILL.
func TestPausedContainers(t *testing.T) {
	for _, mode := range []string{"", "host"} {
		t.Run("pid="+mode, func(t *testing.T) {
			h := newHost(t)
			x := h.run(mode, "sleep inf & wait")
			for _, g := range x.Groups() {
				if err := g.Freeze(5 * time.Second); err != nil {
					t.Fatal(err)
				}
			}
			mustDie(t, new(kill.Killer).Kill(t.Context(), []*kill.Target{x}), x)
		})
	}
}

func TestEngineRestartsMeanwhile(t *testing.T) {
	h := newHost(t)
	x := h.run("", busy)
	if err := h.lab.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !x.Alive() {
		t.Fatal("the container did not live through the restart")
	}
	mustDie(t, new(kill.Killer).Kill(t.Context(), []*kill.Target{x}), x)
}

// A command that the engine has started in a container is a zombie in its pid
// namespace until the shim reaps it, and init waits for that. A paused engine has to
// continue the shim long before the pause's cap.
func TestQuietedWithCommandsStartedFromOutside(t *testing.T) {
	h := newHost(t)
	guard, err := guardian.Start([]string{"/proc/self/exe", "guardian", t.TempDir()}, slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer guard.Close()
	const lid = time.Hour // the test must not end by the cap
	quiet := &guardian.Engine{Guardian: guard, Socket: h.lab.Socket(), Cap: lid, Log: slog.Default()}
	defer quiet.Close()
	var targets []*kill.Target
	for range 3 {
		x := h.run("", busy)
		h.exec(x, "sleep inf & wait")
		targets = append(targets, x)
	}
	k := kill.Killer{Pauser: quiet, PauseFrom: 1}
	told := 0
	killed := k.KillPaused(t.Context(), targets)
	killed.Step(kill.StepRelease, func() int {
		r := killed.Report()
		told++
		mustDie(t, r, targets...)
		poll.Until(t, "the engine is stopped", func() bool { // a thread stops when it runs next
			s, err := proc.Host.Stat(h.lab.Pid())
			return err == nil && s.State == 'T'
		})
		return len(r.Dead)
	})
	r := killed.Resume()
	mustDie(t, r, targets...)
	if !r.EnginePaused || r.Notice != "" || told != 1 {
		t.Errorf("quiet %v, notice %q, told %d times", r.EnginePaused, r.Notice, told)
	}
}

func TestWhatMustNotBeKilled(t *testing.T) {
	id := strings.Repeat("ab", 32)
	for _, pid := range []int{1, os.Getpid(), os.Getppid(), 0, -1} {
		if x, err := kill.Open(id, "", pid); !errors.Is(err, kill.ErrProtected) {
			t.Errorf("pid %d: %v, %v", pid, x, err)
		}
	}
	if x, err := kill.Open(id, "", 1<<22-1); !errors.Is(err, kill.ErrGone) {
		t.Errorf("a pid without a process: %v, %v", x, err)
	}
}

// A process in uninterruptible sleep is reported as the one that could not be killed.
// Here it waits for a file system that took a request and never answers. SIGKILL
// turns that sleep from an interruptible into an uninterruptible one
// (request_wait_answer, fs/fuse/dev.c).
func TestUninterruptible(t *testing.T) {
	h := newHost(t)
	x := h.run("host", "sleep inf")
	stuck := newStuckFS(t)
	pid := stuck.visitor(t, x)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	r := new(kill.Killer).Kill(ctx, []*kill.Target{x})
	if len(r.Left) != 1 || len(r.Dead) != 0 {
		t.Fatalf("got %+v", r)
	}
	l := r.Left[0]
	if l.ContainerID != x.ID || !slices.Equal(l.Pids, []int{pid}) || !strings.Contains(l.Reason, "uninterruptible sleep (D) in request_wait_answer") {
		t.Errorf("left %+v, want process %d", l, pid)
	}
	stuck.abort()
	mustDie(t, new(kill.Killer).Kill(t.Context(), []*kill.Target{x}), x)
}

// A closed target cannot be seen dead.
func TestClosedTarget(t *testing.T) {
	h := newHost(t)
	x := h.run("", "sleep inf")
	x.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if r := new(kill.Killer).Kill(ctx, []*kill.Target{x}); len(r.Dead) != 0 || len(r.Left) != 1 {
		t.Errorf("got %+v", r)
	}
}

func TestWatcher(t *testing.T) {
	h := newHost(t)
	w, err := kill.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- w.Run(ctx) }()
	died := make(chan string, 8)
	add := func(x *kill.Target) {
		if err := w.Add(x, func() { died <- x.ID }); err != nil {
			t.Fatal(err)
		}
	}
	first, second, third := h.run("", "sleep inf"), h.run("host", "sleep inf"), h.run("", "sleep inf")
	for _, x := range []*kill.Target{first, second, third} {
		add(x)
	}
	w.Remove(third)
	for _, x := range []*kill.Target{third, second, first} {
		if err := x.Init().Signal(unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	got := []string{<-died, <-died}
	want := []string{first.ID, second.ID}
	if slices.Sort(got); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
		t.Errorf("died: %v, want %v", got, want)
	}
	add(first) // dead already
	if id := <-died; id != first.ID {
		t.Errorf("died: %v, want %v", id, first.ID)
	}
	cancel()
	if err := <-ran; err != nil {
		t.Error(err)
	}
}

// The test forces the reuse of a pid by ns_last_pid (proc_sys_kernel(5)) in the lab's
// own pid namespace. The handle on the first process never reaches the second, and
// the pid with the first process's start time does not open the second.
func TestReusedPid(t *testing.T) {
	newHost(t) // the namespace is the lab's
	id := strings.Repeat("ab", 32)
	first := killtest.Sleeper(t, id)
	x, err := kill.Open(id, "first", first.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	_ = first.Process.Kill()
	_ = first.Wait()                  // killed
	time.Sleep(20 * time.Millisecond) // start times count in ticks of 10 ms
	second := reuse(t, x.Pid())
	mustDie(t, new(kill.Killer).Kill(t.Context(), []*kill.Target{x}), x)
	if err := second.Process.Signal(unix.Signal(0)); err != nil {
		t.Errorf("the process that reused the pid was hit: %v", err)
	}
	if _, err := kill.Open(id, "first", x.Pid()); !errors.Is(err, kill.ErrStranger) {
		t.Errorf("a process outside the container's control group was opened: %v", err)
	}
	if p, err := pidfd.OpenStarted(x.Pid(), x.Start()); !errors.Is(err, pidfd.ErrReused) {
		t.Errorf("got %v, %v", p, err)
	}
}

// reuse starts a process with that pid.
func reuse(t *testing.T, pid int) *exec.Cmd {
	t.Helper()
	for range 100 { // other processes fork too
		if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", fmt.Append(nil, pid-1), 0); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sleep", "inf")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // killed
		})
		if cmd.Process.Pid == pid {
			return cmd
		}
	}
	t.Fatalf("pid %d was not reused", pid)
	return nil
}
