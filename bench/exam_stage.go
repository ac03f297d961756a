package bench

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/tasks"
)

// Paths in a fault's container.
const (
	faultPath = "/fault" // its programs
	dataPath  = "/data"  // a directory on a disk
)

// stage is a fault that runs.
type faultStage struct {
	x     *examBench
	fault Fault
	ids   map[string]string // of the containers, by their name for the engine
	host  *exec.Cmd
	group string                     // of the program outside containers
	names map[string]map[string]bool // containers by their name in the manifest: those of its copies
	begun time.Time
	data  string
}

// begin starts a fault. The caller must call end, also after an error. It returns when every
// program has said that it is ready.
func (x *examBench) begin(ctx context.Context, f Fault) (*faultStage, error) {
	s := &faultStage{x: x, fault: f, ids: make(map[string]string), names: make(map[string]map[string]bool), begun: time.Now(), group: path.Join(x.boot.lab.CgroupParent(), "fault-"+f.Name)}
	s.data = filepath.Join(x.scratch, "fault-"+f.Name)
	for name, shape := range f.Containers {
		s.names[name] = make(map[string]bool)
		for i := range cmp.Or(shape.Copies, 1) {
			as := name
			if shape.Copies > 1 {
				as = fmt.Sprintf("%s-%d", name, i)
			}
			s.names[name][as] = true
			if err := s.container(ctx, as, shape); err != nil {
				return s, err
			}
		}
	}
	if f.Host != nil {
		return s, s.outside(ctx, *f.Host)
	}
	return s, nil
}

// readyLimit bounds the time until a program is ready.
const readyLimit = 30 * time.Second

// container starts one container and waits until its program is ready.
func (s *faultStage) container(ctx context.Context, name string, shape FaultShape) error {
	data := filepath.Join(s.data, name)
	if err := os.MkdirAll(data, 0o777); err != nil {
		return err
	}
	memory, err := shape.memory()
	if err != nil {
		return err
	}
	mounts := []engine.Mount{{Type: "bind", Source: s.x.programs, Target: faultPath, ReadOnly: true}, {Type: "bind", Source: data, Target: dataPath}}
	if shape.Tools == culpritHost || filepath.Ext(shape.Program) == ".py" {
		for _, dir := range []string{"/usr", "/lib", "/lib64", "/etc/alternatives"} {
			if at, err := filepath.EvalSymlinks(dir); err == nil {
				mounts = append(mounts, engine.Mount{Type: "bind", Source: at, Target: dir, ReadOnly: true})
			}
		}
	}
	// An engine refuses a limit above the host's CPUs.
	id, err := s.x.boot.engine.Create(ctx, engine.Spec{Name: name, Image: busyboxImage, Command: shape.command(faultPath), Init: true, Network: cmp.Or(shape.Network, "none"), Mounts: mounts,
		Env: []string{"FAULT=" + faultPath, "PATH=/bin:/sbin:/usr/bin:/usr/sbin"}, Memory: memory, CPUs: min(shape.CPUs, float64(runtime.NumCPU())), PIDs: cmp.Or(shape.PIDs, faultPIDs), Capabilities: shape.Capabilities})
	if err != nil {
		return err
	}
	s.ids[name] = id
	if err := s.x.boot.engine.Start(ctx, id); err != nil {
		return err
	}
	return awaitReady(ctx, func() (string, bool) {
		var log head
		_ = s.x.boot.engine.Logs(ctx, id, engine.LogOptions{Tail: -1}, &log)
		c, err := s.x.boot.engine.Inspect(ctx, id)
		return log.String(), err == nil && c.State == "running"
	})
}

// head keeps the begin of what is written to it, and then refuses more: a program may log much after
// the line "ready".
type head struct{ strings.Builder }

// headSize is the size of a head in bytes.
const headSize = 16 << 10

func (h *head) Write(b []byte) (int, error) {
	if h.Len() > headSize {
		return 0, errors.New("this is enough of the log")
	}
	return h.Builder.Write(b)
}

// awaitReady waits until a program has written the line "ready". said returns what it has
// written, and whether it runs.
func awaitReady(ctx context.Context, said func() (string, bool)) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	for {
		text, runs := said()
		if strings.Contains(text, "ready") {
			return nil
		}
		if !runs {
			return fmt.Errorf("%w: %s", errFault, strings.TrimSpace(text))
		}
		if tasks.Sleep(ctx, 200*time.Millisecond) != nil {
			return fmt.Errorf("%w: it did not print ready: %s", errFault, strings.TrimSpace(text))
		}
	}
}

// errFault: the fault is at fault, not the bench.
var errFault = errors.New("the fault did not start")

// joining moves a shell into the groups of which $JOIN has the files, and runs the rest.
const joining = `for f in $JOIN; do echo $$ >"$f"; done; exec "$@"`

// outside starts a program outside of containers, in a control group of its own.
func (s *faultStage) outside(ctx context.Context, shape FaultShape) error {
	var files []string
	for _, dir := range s.x.home.dirs { // <point>/<parent>/bench
		dir = filepath.Join(filepath.Dir(dir), path.Base(s.group))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		files = append(files, filepath.Join(dir, "cgroup.procs"))
	}
	cmd := exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", joining, "fault"}, shape.command(s.x.programs)...)...)
	cmd.Env = append(s.x.env(), "JOIN="+strings.Join(files, " "))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := os.Create(filepath.Join(s.x.scratch, "fault.out"))
	if err != nil {
		return err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return err
	}
	s.host = cmd
	return awaitReady(ctx, func() (string, bool) {
		b, _ := os.ReadFile(out.Name())
		return string(b), syscall.Kill(cmd.Process.Pid, 0) == nil
	})
}

// env is the environment of programs outside of containers.
func (x *examBench) env() []string {
	return append(os.Environ(), "FAULT="+x.programs, "DOCKER_HOST="+x.boot.lab.Host())
}

// ended tells of a container that has ended by itself, "" if all run. A fault without one of its
// programs is not the one that the manifest describes. It does not look at a program outside containers.
func (s *faultStage) ended(ctx context.Context) (string, error) {
	for name, id := range s.ids {
		c, err := s.x.boot.engine.Inspect(ctx, id)
		if err != nil {
			return "", err
		}
		if c.State != "running" {
			var log head
			_ = s.x.boot.engine.Logs(ctx, id, engine.LogOptions{Tail: 20}, &log)
			return fmt.Sprintf("the fault ended too early: container %s is %s with exit code %d: %s", name, c.State, c.ExitCode, strings.TrimSpace(log.String())), nil
		}
	}
	return "", nil
}

// end stops the fault and undoes it.
func (s *faultStage) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	if s.host != nil {
		errs = append(errs, s.endOutside())
	}
	for _, id := range s.ids {
		errs = append(errs, s.x.boot.engine.Remove(ctx, id))
	}
	if s.fault.After != nil {
		argv := s.fault.After.command(s.x.programs)
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Env = s.x.env()
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil {
			errs = append(errs, fmt.Errorf("undo fault %s: %w: %s", s.fault.Name, err, out.String()))
		}
	}
	return errors.Join(append(errs, os.RemoveAll(s.data))...)
}

// endOutside ends all processes of the program outside containers, and removes their group.
func (s *faultStage) endOutside() error {
	_ = s.host.Process.Kill()
	_ = s.host.Wait() // it was killed
	var left error
	for range 100 {
		left = nil
		for _, m := range s.x.groups {
			g := m.Group(s.group)
			err := g.Kill()
			if e := unix.Rmdir(g.Dir()); e != nil && !errors.Is(e, unix.ENOENT) {
				left = errors.Join(left, err, e)
			}
		}
		if left == nil {
			return nil
		}
		time.Sleep(50 * time.Millisecond) // killed processes leave a group when the kernel has finished with them
	}
	return fmt.Errorf("end fault %s: %w", s.fault.Name, left)
}
