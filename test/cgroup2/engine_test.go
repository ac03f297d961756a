package cgroup2

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/sessions/guardian"
	"holdfast/internal/sessions/kill"
	"holdfast/test/poll"
)

// engine is the set of processes that pausing an engine finds, without an engine's
// function: a dockerd and a containerd that serve their sockets, and shims that start and
// reap containers. All are this program under the names that are searched for.
type engine struct {
	bin, socket, containerd string
	pids                    []int // pids of its processes
}

func newEngine(t *testing.T) *engine {
	t.Helper()
	bin, err := os.MkdirTemp("/bin", "engine-") // on the same file system as this program, for hard links
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(bin) })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"dockerd", "containerd", "containerd-shim-runc-v2"} {
		if err := os.Link(self, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	e := &engine{bin: bin, socket: filepath.Join(bin, "docker.sock"), containerd: filepath.Join(bin, "containerd.sock")}
	e.start(t, exec.Command(bin+"/dockerd", "daemon", e.socket))
	e.start(t, exec.Command(bin+"/containerd", "daemon", e.containerd))
	return e
}

// start starts one of the engine's processes and returns the first line that it prints,
// which means that it is ready.
func (e *engine) start(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it is killed
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("%s: %v", cmd, err)
	}
	e.pids = append(e.pids, cmd.Process.Pid)
	return line
}

// run starts a container below a shim.
func (e *engine) run(t *testing.T) container {
	t.Helper()
	id, dir := newGroup(t)
	shim := exec.Command(e.bin+"/containerd-shim-runc-v2", "-address", e.containerd)
	shim.Env = append(os.Environ(), "GROUP="+dir)
	var pid int
	if _, err := fmt.Sscan(e.start(t, shim), &pid); err != nil {
		t.Fatal(err)
	}
	c := container{hold(t, id, pid), dir}
	if s := c.Shim(); s == nil || s.Pid() != shim.Process.Pid {
		t.Fatalf("the shim is %v, want process %d", s, shim.Process.Pid)
	}
	hasProcesses(t, 3, c)
	return c
}

// stopped returns the engine's processes that are stopped by a signal.
func (e *engine) stopped() []string {
	var names []string
	for _, pid := range e.pids {
		// A shim exits with its container.
		if s, err := proc.Host.Stat(pid); err == nil && s.State == 'T' {
			names = append(names, fmt.Sprintf("%s %d", s.Comm, pid))
		}
	}
	return names
}

// mustRun fails unless the whole engine soon runs and responds.
func (e *engine) mustRun(t *testing.T) {
	t.Helper()
	poll.Until(t, "the engine runs", func() bool { return len(e.stopped()) == 0 })
	for _, socket := range []string{e.socket, e.containerd} {
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); err != io.EOF { // the daemon closes the connection
			t.Errorf("%s: %v", socket, err)
		}
		c.Close()
	}
}

// daemon serves a socket until it is killed.
func daemon(socket string) error {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		c.Close()
	}
}

// shim starts a container, and from outside a command in it that the shim reaps.
func shim() error {
	dir := os.Getenv("GROUP")
	init, err := spawn(dir, own, "sleep inf & wait")
	if err != nil {
		return err
	}
	command, err := spawn(dir, init.Process.Pid, "sleep inf")
	if err != nil {
		return err
	}
	fmt.Println(init.Process.Pid)
	_ = command.Wait() // both are killed
	_ = init.Wait()
	return nil
}

// patient pauses an engine again if it was not paused. A kill goes on with a running engine
// if the guardian does not answer within 250 ms, and in this machine it may take longer.
type patient struct{ *guardian.Engine }

func (p patient) Pause(ctx context.Context, targets []*kill.Target) (paused kill.PausedEngine, err error) {
	for range 20 {
		if paused, err = p.Engine.Pause(ctx, targets); err == nil {
			break
		}
	}
	return paused, err
}

// A kill with a paused engine, of containers with commands that were started from
// outside. A killed command stays a zombie that only the shim can reap, and init waits
// for it.
func TestQuieted(t *testing.T) {
	e := newEngine(t)
	guard, err := guardian.Start(guardianArgv(t.TempDir()), slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer guard.Close()
	const lid = time.Hour // the pause must not end by its maximum duration
	stopped := 0
	observe := func(step string) {
		if step == guardian.StepStopped {
			// Each process stops when it next leaves the kernel.
			poll.Until(t, "all are stopped", func() bool { stopped = len(e.stopped()); return stopped == len(e.pids) })
		}
	}
	quiet := &guardian.Engine{Guardian: guard, Socket: e.socket, Cap: lid, Log: slog.Default(), Observe: observe}
	defer quiet.Close()
	var cs []container
	for range kill.DefaultPauseFrom {
		cs = append(cs, e.run(t))
	}
	k := kill.Killer{Pauser: patient{quiet}}
	r := k.Kill(t.Context(), targets(cs))
	mustDie(t, r, cs...)
	if !r.EnginePaused || r.Notice != "" {
		t.Errorf("quiet %v, notice %q", r.EnginePaused, r.Notice)
	}
	if want := 2 + len(cs); stopped != want {
		t.Errorf("%d were stopped, want dockerd, containerd and each shim: %d", stopped, want)
	}
	e.mustRun(t)
}

// The killer is killed by SIGKILL before, while and after the engine is stopped. Its
// guardian resumes the engine.
func TestStarterIsKilled(t *testing.T) {
	e := newEngine(t)
	for _, step := range []string{
		guardian.StepArm, guardian.StepStop, guardian.StepStopped, kill.StepDie, guardian.StepDisarm,
	} {
		t.Run(step, func(t *testing.T) {
			c := e.run(t)
			arg, err := json.Marshal(order{Socket: e.socket, Dir: t.TempDir(), ID: c.ID, Name: c.Name, Pid: c.Pid(), At: step})
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("/proc/self/exe", "killer", string(arg))
			cmd.Stderr = os.Stderr
			// The guardian holds the other end, too, until it is done.
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			told, err := io.ReadAll(out)
			if err != nil {
				t.Error(err)
			}
			if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != -1 {
				t.Fatalf("the killer was not killed: %v\n%s", err, told)
			}
			if !strings.Contains(string(told), step) {
				t.Errorf("the killer did not reach its step:\n%s", told)
			}
			e.mustRun(t)
		})
	}
}

func guardianArgv(dir string) []string { return []string{"/proc/self/exe", "guardian", dir} }

// order is the argument of a killer process: the container to kill, the engine to pause,
// and the step at which the process kills itself.
type order struct {
	Socket, Dir, At string
	ID, Name        string
	Pid             int
}

func killer(arg string) error {
	var o order
	if err := json.Unmarshal([]byte(arg), &o); err != nil {
		return err
	}
	guard, err := guardian.Start(guardianArgv(o.Dir), slog.Default())
	if err != nil {
		return err
	}
	observe := func(step string) {
		fmt.Println(step)
		if step == o.At {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
	}
	quiet := &guardian.Engine{Guardian: guard, Socket: o.Socket, Log: slog.Default(), Observe: observe}
	target, err := kill.Open(o.ID, o.Name, o.Pid)
	if err != nil {
		return err
	}
	k := kill.Killer{Pauser: patient{quiet}, PauseFrom: 1, Observe: observe}
	return fmt.Errorf("the kill completed: %+v", k.Kill(context.Background(), []*kill.Target{target}))
}
