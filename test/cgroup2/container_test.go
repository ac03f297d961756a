package cgroup2

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/sessions/kill"
	"holdfast/internal/sessions/kill/killtest"
	"holdfast/test/poll"
	"holdfast/test/vm/guest"
)

// slice is the group in which an engine with the systemd cgroup driver creates containers
// on such a host.
const slice = guest.CgroupRoot + "/system.slice"

// prepareGroups creates the slice with the controllers that an engine uses.
func prepareGroups() error {
	if err := os.Mkdir(slice, 0o755); err != nil {
		return err
	}
	return os.WriteFile(slice+"/cgroup.subtree_control", []byte("+cpu +memory +pids"), 0)
}

// busy is a container with workers, a daemon that has left the session, and a bounded
// fork storm.
const busy = `sleep inf & sleep inf &
setsid sh -c 'while :; do for i in 1 2 3 4; do sleep 0.02 & done; wait; done' &
(setsid sleep inf &)
wait`

// Pid namespaces of a container, other than those of another container.
const (
	own  = 0
	host = -1
)

// container is a process in a control group, with its descendants.
type container struct {
	*kill.Target
	dir string // directory of its control group
}

// newGroup creates a container's control group. At the end of the test it kills the
// group's processes and removes it.
func newGroup(t *testing.T) (id, dir string) {
	t.Helper()
	var random [32]byte
	_, _ = rand.Read(random[:]) // never fails
	id = hex.EncodeToString(random[:])
	dir = filepath.Join(slice, "docker-"+id+".scope")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		write(t, dir+"/cgroup.kill", "1")
		poll.Until(t, "the group can be removed", func() bool {
			below, _ := filepath.Glob(dir + "/*/cgroup.procs")
			for _, f := range below {
				_ = os.Remove(filepath.Dir(f)) // the next line detects a failure
			}
			return os.Remove(dir) == nil
		})
	})
	return id, dir
}

// run starts a container and opens it. pidNS is own, host, or the init of another
// container.
func run(t *testing.T, pidNS int, script string) container {
	t.Helper()
	id, dir := newGroup(t)
	return container{hold(t, id, start(t, dir, pidNS, script)), dir}
}

func hold(t *testing.T, id string, pid int) *kill.Target {
	t.Helper()
	target, err := kill.Open(id, "", pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(target.Close)
	return target
}

// start starts a shell in a control group and a pid namespace, and returns its pid. A
// goroutine reaps it as soon as it ends, as a shim would.
func start(t *testing.T, dir string, pidNS int, script string) int {
	t.Helper()
	cmd, err := spawn(dir, pidNS, script)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // it is killed
		close(ended)
	}()
	t.Cleanup(func() {
		write(t, dir+"/cgroup.kill", "1")
		<-ended
	})
	return cmd.Process.Pid
}

func spawn(dir string, pidNS int, script string) (*exec.Cmd, error) {
	group, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer group.Close()
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())}
	switch pidNS {
	case own:
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC
		fallthrough
	case host:
		return cmd, cmd.Start()
	}
	return cmd, startIn(cmd, pidNS)
}

// startIn starts a command in the pid namespace of a process. setns(2) changes the
// namespace of a thread's future children; the thread is not reused.
func startIn(cmd *exec.Cmd, pid int) error {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil {
		return err
	}
	defer ns.Close()
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this function
		err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWPID)
		if err == nil {
			err = cmd.Start()
		}
		started <- err
	}()
	return <-started
}

// exec starts a command in the container from outside and leaves it running.
func (c container) exec(t *testing.T, script string) {
	t.Helper()
	start(t, c.dir, c.Pid(), script)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// grown waits until all processes of busy exist and its fork storm has begun.
func grown(t *testing.T, cs ...container) {
	t.Helper()
	hasProcesses(t, 6, cs...)
}

func hasProcesses(t *testing.T, n int, cs ...container) {
	t.Helper()
	for _, c := range cs {
		poll.Until(t, fmt.Sprintf("the container has %d processes", n), func() bool {
			b, err := os.ReadFile(c.dir + "/cgroup.procs")
			return err == nil && bytes.Count(b, []byte("\n")) >= n
		})
	}
}

func targets(cs []container) []*kill.Target {
	var ts []*kill.Target
	for _, c := range cs {
		ts = append(ts, c.Target)
	}
	return ts
}

// mustDie checks that a report has all targets as dead, and that they are.
func mustDie(t *testing.T, r holdfast.KillReport, cs ...container) {
	t.Helper()
	for _, l := range r.Left {
		t.Errorf("left: %+v", l)
	}
	for _, c := range cs {
		if !slices.Contains(r.Dead, c.ID) {
			t.Errorf("%s is not reported dead: %+v", c, r)
		}
		if ps := killtest.Processes(t, c.ID); len(ps) > 0 {
			t.Errorf("%s has processes left: %q", c, ps)
		}
		if c.Alive() {
			t.Errorf("%s is alive", c)
		}
	}
}
