package guardian_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/sessions/guardian"
	"holdfast/internal/sessions/kill"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

type host struct {
	t   *testing.T
	lab labtest.Daemon
	engine.Engine
}

func newHost(t *testing.T) *host {
	t.Helper()
	daemon, e := labtest.Either(t)
	return &host{t, daemon, e}
}

// run starts n containers.
func (h *host) run(n int) []container {
	h.t.Helper()
	var cs []container
	for range n {
		id, err := h.Create(h.t.Context(), engine.Spec{Image: labtest.Busybox, Network: "none"})
		if err != nil {
			h.t.Fatal(err)
		}
		h.t.Cleanup(func() {
			if err := h.Remove(context.Background(), id); err != nil {
				h.t.Error(err)
			}
		})
		if err := h.Start(h.t.Context(), id); err != nil {
			h.t.Fatal(err)
		}
		c, err := h.Inspect(h.t.Context(), id)
		if err != nil {
			h.t.Fatal(err)
		}
		cs = append(cs, container{ID: id, Name: c.Name, Pid: c.Pid})
	}
	return cs
}

// enginePids finds the daemon, its containerd and the shims by their names,
// independently of the code under test.
func (h *host) enginePids() map[int]string {
	h.t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		h.t.Fatal(err)
	}
	pids := make(map[int]string)
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		s, err := proc.ParseStat(b)
		if err == nil && s.State != 'Z' && (s.Comm == "dockerd" || strings.HasPrefix(s.Comm, "containerd")) {
			pids[s.Pid] = s.Comm
		}
	}
	return pids
}

// stopped returns the engine's processes that a signal has stopped.
func (h *host) stopped() []string {
	h.t.Helper()
	var names []string
	for pid, name := range h.enginePids() {
		if s, err := proc.Host.Stat(pid); err == nil && s.State == 'T' {
			names = append(names, fmt.Sprintf("%s %d", name, pid))
		}
	}
	return names
}

// mustRun fails unless all of the engine's processes soon run and the engine answers.
func (h *host) mustRun() {
	h.t.Helper()
	poll.Until(h.t, "engine and shims run", func() bool { return len(h.stopped()) == 0 })
	if _, err := h.Info(h.t.Context()); err != nil {
		h.t.Error(err)
	}
}

// killer starts a killer process and returns its output.
func (h *host) killer(o order) (*exec.Cmd, *bytes.Buffer) {
	h.t.Helper()
	o.Socket = h.lab.Socket()
	arg, err := json.Marshal(o)
	if err != nil {
		h.t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := exec.Command("/proc/self/exe", "killer", string(arg))
	cmd.Stdout, cmd.Stderr = &out, os.Stderr // the guardian inherits it and outlives the killer
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	return cmd, &out
}

// A kill with a paused engine, without a fault.
func TestQuiet(t *testing.T) {
	h := newHost(t)
	dir := t.TempDir()
	cmd, out := h.killer(order{Dir: dir, Containers: h.run(3)})
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"EnginePaused:true", "pause.stopped", "pause.disarm"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	// The daemons and three shims, each with a step of its own.
	if n := strings.Count(out.String(), "pause.stop\n"); n != 1+daemons()+3 {
		t.Errorf("%d steps of stopping\n%s", n, out)
	}
	if !strings.Contains(out.String(), "Notice:}") {
		t.Errorf("the steps of continuing do not match those of stopping:\n%s", out)
	}
	h.mustRun()
	if left, _ := filepath.Glob(dir + "/*"); len(left) > 0 {
		t.Errorf("files left: %v", left)
	}
}

// SIGKILL at every step, or some steps without -long, of a kill with a paused engine: the engine runs again.
func TestKilledAtEveryStep(t *testing.T) {
	h := newHost(t)
	var longest time.Duration
	next := labtest.Count(4, 1) // the steps between two kills
	for at := 1; ; at += next {
		if at > 100 {
			t.Fatal("the steps do not end")
		}
		dir := t.TempDir()
		cmd, out := h.killer(order{Dir: dir, Containers: h.run(2), At: at, Do: "kill"})
		err := cmd.Wait()
		died := time.Now()
		h.mustRun()
		longest = max(longest, time.Since(died))
		if err == nil { // the killer has finished: there are fewer steps
			if want := lastStop(2) + 9 + daemons(); at-next > want || want >= at {
				t.Errorf("fewer than %d steps, want %d:\n%s", at, want, out)
			}
			t.Logf("the engine ran again after at most %v", longest)
			return
		}
		if cmd.ProcessState.ExitCode() != -1 {
			t.Fatalf("step %d: it ended by itself: %v\n%s", at, err, out)
		}
		poll.Until(h.t, "the guardian cleans up", func() bool {
			left, _ := filepath.Glob(dir + "/*")
			return len(left) == 0
		})
	}
}

// lastStop is the number of the step after which the whole engine is stopped, for n
// containers: quiet, find, arm, stop, stop for each process, stopped.
func lastStop(n int) int { return 4 + (daemons() + n) + 1 }

// daemons is the number of the engine's processes besides its shims: dockerd and
// containerd, or containerd alone.
func daemons() int {
	if labtest.OnContainerd() {
		return 1
	}
	return 2
}

// A starter that hangs: the guardian continues the engine at the deadline.
func TestStarterHangs(t *testing.T) {
	h := newHost(t)
	cmd, out := h.killer(order{Dir: t.TempDir(), Containers: h.run(2), At: lastStop(2), Do: "stop"})
	poll.Until(h.t, "the starter hangs", func() bool {
		s, err := proc.Host.Stat(cmd.Process.Pid)
		return err == nil && s.State == 'T'
	})
	h.mustRun()
	if err := cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil { // the killer goes on and finishes
		t.Errorf("%v\n%s", err, out)
	}
	if !strings.Contains(out.String(), guardian.ErrUndone.Error()) {
		t.Errorf("the report does not say that the guardian stepped in:\n%s", out)
	}
	h.mustRun()
}

// A starter hangs before it has stopped anything, for longer than the engine may be
// stopped. It notices that, and the engine runs.
func TestStarterHangsEarly(t *testing.T) {
	h := newHost(t)
	const firstStop = 4 // quiet, find, arm, stop
	cmd, out := h.killer(order{Dir: t.TempDir(), Containers: h.run(2), At: firstStop, Do: "stop"})
	poll.Until(h.t, "the starter hangs", func() bool {
		s, err := proc.Host.Stat(cmd.Process.Pid)
		return err == nil && s.State == 'T'
	})
	time.Sleep(guardian.DefaultPauseCap + 500*time.Millisecond) // the deadline passes
	if err := cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if !strings.Contains(out.String(), "EnginePaused:false") || !strings.Contains(out.String(), guardian.ErrUndone.Error()) {
		t.Errorf("it did not notice:\n%s", out)
	}
	h.mustRun()
}

// The guardian is killed: its starter continues the engine at once, although the
// goroutine that kills containers is stuck.
func TestGuardianKilled(t *testing.T) {
	h := newHost(t)
	cmd, _ := h.killer(order{Dir: t.TempDir(), Containers: h.run(2), At: lastStop(2), Do: "kill-guardian"})
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	}()
	poll.Until(h.t, "the guardian is dead", func() bool { return len(children(t, cmd.Process.Pid)) == 0 })
	h.mustRun()
}

// Starter and guardian are killed: Recover continues the engine.
func TestBothKilled(t *testing.T) {
	h := newHost(t)
	dir := t.TempDir()
	cmd, out := h.killer(order{Dir: dir, Containers: h.run(2), At: lastStop(2), Do: "kill-both"})
	_ = cmd.Wait() // killed
	var pid int
	_, line, _ := strings.Cut(out.String(), "guardian ")
	if _, err := fmt.Sscan(line, &pid); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if n, err := guardian.Recover(dir); n != 0 || err != nil {
		t.Errorf("recovered from a guardian that lives: %d, %v", n, err)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	poll.Until(h.t, "the guardian is dead", func() bool { _, err := proc.Host.Stat(pid); return err != nil })
	// The daemons and two shims stay stopped: all tests above would see this without
	// a guardian. A thread stops some time after the signal was sent.
	poll.Until(h.t, "the daemons and two shims are stopped", func() bool { return len(h.stopped()) == daemons()+2 })
	if n, err := guardian.Recover(dir); n != 1 || err != nil {
		t.Errorf("recovered %d, %v", n, err)
	}
	h.mustRun()
	if n, err := guardian.Recover(dir); n != 0 || err != nil {
		t.Errorf("recovered twice: %d, %v", n, err)
	}
}

func children(t *testing.T, pid int) []int {
	t.Helper()
	pids, err := proc.Host.Pids()
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(pids, func(p int) bool {
		s, err := proc.Host.Stat(p)
		return err != nil || s.PPid != pid || s.State == 'Z'
	})
}

// If the engine cannot be found or guarded, the kill goes on without pausing it and
// reports why.
func TestEngineCannotBePaused(t *testing.T) {
	h := newHost(t)
	impostor := filepath.Join(t.TempDir(), "docker.sock")
	l, err := net.Listen("unix", impostor)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	guard, err := guardian.Start(guardianArgv(t.TempDir()), slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer guard.Close()
	closed, err := guardian.Start(guardianArgv(t.TempDir()), slog.Default())
	if err = errors.Join(err, closed.Close()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, why string
		engine    *guardian.Engine
	}{
		{"ourselves", "must not be stopped", &guardian.Engine{Guardian: guard, Socket: impostor}},
		{"no server", "no such file", &guardian.Engine{Guardian: guard, Socket: impostor + ".none"}},
		{"full backlog", "temporarily unavailable", &guardian.Engine{Guardian: guard, Socket: fullSocket(t)}},
		{"no guardian", guardian.ErrNoGuardian.Error(), &guardian.Engine{Guardian: closed, Socket: h.lab.Socket()}},
	} {
		x := h.run(1)[0]
		target, err := kill.Open(x.ID, x.Name, x.Pid)
		if err != nil {
			t.Fatal(err)
		}
		k := kill.Killer{Pauser: c.engine, PauseFrom: 1, Log: slog.New(slog.DiscardHandler)}
		r := k.Kill(t.Context(), []*kill.Target{target})
		if r.EnginePaused || !strings.Contains(r.Notice, c.why) || len(r.Dead) != 1 || len(r.Left) != 0 {
			t.Errorf("%s: %+v", c.name, r)
		}
		target.Close()
		c.engine.Close()
	}
	h.mustRun()
}

// fullSocket is the path of a socket whose server accepts nothing, and whose backlog is full.
func fullSocket(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "full")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	for range 8 {
		c, err := net.Dial("unix", path)
		if errors.Is(err, unix.EAGAIN) {
			return path
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
	t.Fatal("a backlog of 0 takes 8 connections")
	return ""
}

// The server of a socket on which systemd listens is found among the processes that
// have the socket open.
func TestListeningInodes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", path) // has the same path, and is not a listening socket
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	f, err := l.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		t.Fatal(err)
	}
	got := guardian.ListeningInodes(table, func(p string) bool { return p == path })
	if !slices.Equal(got, []uint64{st.Ino}) {
		t.Errorf("got %v, want %d", got, st.Ino)
	}
}
