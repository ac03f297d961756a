package containerd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	taskapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"holdfast"
	"holdfast/internal/platform/linux/vethnet"
)

// Start starts a created or ended container, and returns when its init runs. Its
// output is read until it ends or the Engine is closed.
func (e *Engine) Start(ctx context.Context, id string) error {
	ctx = e.in(ctx)
	c, err := e.find(ctx, id)
	if err == nil {
		err = e.startOnce(ctx, c, false)
	}
	return e.fail(ctx, err, "start container %s", id)
}

// startOnce starts a container if it does not run.
func (e *Engine) startOnce(ctx context.Context, c containers.Container, again bool) error {
	unlock, err := e.locks.lock(ctx, c.ID)
	if err != nil {
		return err
	}
	defer unlock()
	switch t, err := e.task(ctx, c.ID); {
	case isGone(err):
	case err != nil:
		return err
	case t.Status != task.Status_STOPPED:
		return nil
	default:
		if err := e.deleteTask(ctx, c.ID); err != nil {
			return err
		}
	}
	s, err := readState(recordOf(c).Dir)
	if err != nil {
		return err
	}
	if again && s.Stopped {
		return nil
	}
	if !again {
		s.Restarts = 0
	}
	begin := starting{e: e, c: c, record: recordOf(c), state: state{Address: s.Address, Restarts: s.Restarts}}
	return begin.run(ctx)
}

// starting is one start of a container.
type starting struct {
	e      *Engine
	c      containers.Container
	record record
	state  state
	spec   *specs.Spec
	log    *pump
	made   bool // the task was made
}

func (s *starting) run(ctx context.Context) error {
	err := s.try(ctx)
	if err == nil {
		return nil
	}
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanLimit)
	defer cancel()
	if s.made {
		err = errors.Join(err, s.e.killTask(clean, s.c.ID), s.e.deleteTask(clean, s.c.ID))
	}
	if s.log != nil {
		s.log.abandon()
	}
	if ctx.Err() != nil || isDown(err) {
		return err
	}
	s.state.Started, s.state.Ended, s.state.Error = time.Time{}, time.Now(), err.Error()
	s.state.ExitCode = codeOfStart(err)
	return errors.Join(err, writeState(s.record.Dir, s.state))
}

// codeOfStart is the exit code of shells and Docker for a command that could not be
// run: 127 if it was not found, else 126.
func codeOfStart(err error) int {
	text := err.Error()
	for _, word := range []string{"no such file or directory", "executable file not found", "system cannot find"} {
		if strings.Contains(text, word) {
			return 127
		}
	}
	return 126
}

func (s *starting) try(ctx context.Context) error {
	if s.record.Dir == "" {
		return errors.New("it was not made by Holdfast")
	}
	var err error
	if s.spec, err = specOf(s.c); err != nil {
		return err
	}
	owner, err := s.joinOthers(ctx)
	if err != nil {
		return err
	}
	if err := s.address(); err != nil {
		return err
	}
	if err := s.files(owner); err != nil {
		return err
	}
	if s.log, err = s.e.pumps.open(ctx, s.c.ID, s.record.Dir); err != nil {
		return err
	}
	pid, err := s.createTask(ctx)
	if err != nil {
		return err
	}
	if s.state.Address.IsValid() {
		// The namespace exists, and no process of the container runs yet.
		if err := s.e.attach(pid, s.c.ID, s.state.Address); err != nil {
			return err
		}
	}
	s.state.Started = time.Now()
	if err := writeState(s.record.Dir, s.state); err != nil {
		return err
	}
	if _, err := s.e.api.TaskService().Start(ctx, &taskapi.StartRequest{ContainerID: s.c.ID}); err != nil {
		return errgrpc.ToNative(err)
	}
	s.log.run()
	return nil
}

// attach connects a container's namespace to the bridge.
func (e *Engine) attach(pid int, id string, addr netip.Addr) error {
	err := e.net.Attach(pid, id, addr)
	if errors.Is(err, vethnet.ErrNoNAT) {
		return holdfast.WithHint(err, "engine.masquerade: false starts containers without one, and leaves the firewall alone")
	}
	return err
}

// address reserves the container's address, which it has from its first start until
// it is removed.
func (s *starting) address() error {
	if s.record.Network != "" || s.state.Address.IsValid() {
		return nil
	}
	var err error
	s.state.Address, err = s.e.net.Reserve(s.c.ID)
	if err == nil {
		err = writeState(s.record.Dir, s.state) // so that it is freed with the container
	}
	return err
}

// createTask makes the shim create the container's namespaces and its init, which
// waits.
func (s *starting) createTask(ctx context.Context) (pid int, err error) {
	mounts, err := s.e.api.SnapshotService(s.c.Snapshotter).Mounts(ctx, s.c.SnapshotKey)
	if err != nil {
		return 0, fmt.Errorf("its file system: %w", err)
	}
	req := &taskapi.CreateTaskRequest{ContainerID: s.c.ID, Rootfs: mount.ToProto(mounts), Stdout: s.log.path(stdout), Stderr: s.log.path(stderr)}
	res, err := s.e.api.TaskService().Create(ctx, req)
	if err != nil {
		return 0, errgrpc.ToNative(err)
	}
	s.made = true
	return int(res.Pid), nil
}

// specOf returns a container's runtime spec.
func specOf(c containers.Container) (*specs.Spec, error) {
	if c.Spec == nil {
		return nil, errors.New("the container has no runtime spec")
	}
	var spec specs.Spec
	if err := typeurl.UnmarshalTo(c.Spec, &spec); err != nil {
		return nil, fmt.Errorf("read the container's runtime spec: %w", err)
	}
	return &spec, nil
}

// files writes the container's files in /etc. owner is the container whose network it
// joins, or the zero value.
func (s *starting) files(owner containers.Container) error {
	host := s.spec.Hostname
	text := map[string][]byte{"hostname": []byte(host + "\n")}
	if owner.ID != "" {
		for _, name := range ownFiles { // including the host name, as with Docker
			var err error
			if text[name], err = os.ReadFile(filepath.Join(recordOf(owner).Dir, name)); err != nil {
				return err
			}
		}
	} else {
		text["hosts"], text["resolv.conf"] = hostsFile(s.record.Network, host, s.state), resolvFile(s.record.Network)
	}
	for name, t := range text {
		// Written in place: the file itself is mounted.
		if err := os.WriteFile(filepath.Join(s.record.Dir, name), t, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// task returns containerd's data about a container's process.
func (e *Engine) task(ctx context.Context, id string) (*task.Process, error) {
	res, err := e.api.TaskService().Get(ctx, &taskapi.GetRequest{ContainerID: id})
	if err != nil {
		return nil, errgrpc.ToNative(err)
	}
	return res.Process, nil
}
