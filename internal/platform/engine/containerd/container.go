package containerd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sort"
	"strings"
	"syscall"
	"time"

	taskapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/tasks"
)

// unseen is the exit code of a container that ended unobserved, as with Docker.
const unseen = 255

// maxJoins bounds the chain of containers that share a network namespace: each may
// refer to the next.
const maxJoins = 4

// Inspect returns one container, by id or name.
func (e *Engine) Inspect(ctx context.Context, id string) (engine.Container, error) {
	ctx = e.in(ctx)
	var c engine.Container
	raw, err := e.find(ctx, id)
	if err == nil {
		c, err = e.inspect(ctx, raw)
	}
	return c, e.fail(ctx, err, "inspect container %s", id)
}

func (e *Engine) inspect(ctx context.Context, raw containers.Container) (engine.Container, error) {
	r := recordOf(raw)
	s, err := readState(r.Dir)
	if err != nil {
		return engine.Container{}, err
	}
	t, err := e.task(ctx, raw.ID)
	if err != nil && !isGone(err) {
		return engine.Container{}, err
	}
	c := known(raw, r)
	c.State = stateOf(t, s)
	c.PIDMode, c.Network, c.Restart = r.PIDMode, r.Network, restartOf(raw)
	c.StartedAt, c.OOMKilled, c.Error = s.Started, s.OOM, s.Error
	switch {
	case c.Running():
		c.Pid = int(t.Pid)
	case c.State == "exited":
		c.ExitCode, c.FinishedAt = endOf(t, s)
	default:
		c.ExitCode = s.ExitCode // that of a failed start
	}
	if spec, err := specOf(raw); err == nil {
		if spec.Process != nil {
			c.Env = spec.Process.Env
		}
		if spec.Linux != nil {
			c.CgroupPath = spec.Linux.CgroupsPath
		}
	}
	if !c.Running() {
		return c, nil
	}
	c.Addresses, err = e.addresses(ctx, r, s)
	return c, err
}

// known has the fields that need no further call.
func known(raw containers.Container, r record) engine.Container {
	return engine.Container{ID: raw.ID, Name: nameOf(raw), Image: r.Image, Labels: labelsOf(raw), Created: raw.CreatedAt}
}

// stateOf is the state in the terms of package engine. A started container without a
// task has ended, when the host or its shim did.
func stateOf(t *task.Process, s state) string {
	if t != nil {
		switch t.Status {
		case task.Status_RUNNING:
			return "running"
		case task.Status_PAUSED, task.Status_PAUSING:
			return "paused"
		case task.Status_STOPPED:
			return "exited"
		case task.Status_CREATED:
			return "created"
		}
	}
	if s.Started.IsZero() {
		return "created"
	}
	return "exited"
}

// endOf is how and when a container ended.
func endOf(t *task.Process, s state) (code int, at time.Time) {
	switch {
	case t != nil:
		return int(t.ExitStatus), t.ExitedAt.AsTime()
	case !s.Ended.IsZero():
		return s.ExitCode, s.Ended
	}
	return unseen, s.Started
}

// addresses returns the container's addresses, or those of the container whose
// network it joins.
func (e *Engine) addresses(ctx context.Context, r record, s state) ([]string, error) {
	for range maxJoins {
		other, joined := strings.CutPrefix(r.Network, joins)
		if !joined {
			break
		}
		owner, err := e.find(ctx, other)
		if isGone(err) {
			return nil, nil // its network is gone with that container
		}
		if err != nil {
			return nil, err
		}
		r = recordOf(owner)
		if s, err = readState(r.Dir); err != nil {
			return nil, err
		}
	}
	if r.Network != "" || !s.Address.IsValid() {
		return nil, nil
	}
	return []string{s.Address.String()}, nil
}

// List returns the containers that carry all the labels, oldest first.
func (e *Engine) List(ctx context.Context, labels map[string]string) ([]engine.Container, error) {
	ctx = e.in(ctx)
	var list []engine.Container
	raw, err := e.rawList(ctx, labels)
	if err == nil {
		list, err = e.withStates(ctx, raw)
	}
	return list, e.fail(ctx, err, "list containers")
}

// withStates returns the containers, in their order, with their states.
func (e *Engine) withStates(ctx context.Context, raw []containers.Container) ([]engine.Container, error) {
	res, err := e.api.TaskService().List(ctx, &taskapi.ListTasksRequest{})
	if err != nil {
		return nil, errgrpc.ToNative(err)
	}
	running := make(map[string]*task.Process, len(res.Tasks))
	for _, t := range res.Tasks {
		running[t.ID] = t
	}
	list := make([]engine.Container, 0, len(raw))
	for _, item := range raw {
		r := recordOf(item)
		c := known(item, r)
		var s state
		if running[item.ID] == nil {
			if s, err = readState(r.Dir); err != nil {
				return nil, err
			}
		}
		c.State = stateOf(running[item.ID], s)
		list = append(list, c)
	}
	return list, nil
}

// rawList returns the containers with all the labels, oldest first.
func (e *Engine) rawList(ctx context.Context, labels map[string]string) ([]containers.Container, error) {
	list, err := e.api.ContainerService().List(ctx, filtersOf(labels)...)
	if err != nil {
		return nil, err
	}
	sort.Slice(list, func(i, j int) bool {
		a, b := &list[i], &list[j]
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID)) < 0
	})
	return list, nil
}

// filtersOf selects containers with all the labels (containerd, pkg/filters); "" is
// any value.
func filtersOf(labels map[string]string) []string {
	var all []string
	for key, value := range labels {
		f := fmt.Sprintf("labels.%q", key)
		if value != "" {
			f += fmt.Sprintf("==%q", value)
		}
		all = append(all, f)
	}
	if len(all) == 0 {
		return nil
	}
	return []string{strings.Join(all, ",")}
}

// Wait returns a container's exit code when it has stopped.
func (e *Engine) Wait(ctx context.Context, id string) (int, error) {
	ctx = e.in(ctx)
	c, err := e.find(ctx, id)
	if err != nil {
		return 0, e.fail(ctx, err, "wait for container %s", id)
	}
	res, err := e.api.TaskService().Wait(ctx, &taskapi.WaitRequest{ContainerID: c.ID})
	if err == nil {
		return int(res.ExitStatus), nil
	}
	if err = errgrpc.ToNative(err); !isGone(err) {
		return 0, e.fail(ctx, err, "wait for container %s", id)
	}
	s, err := readState(recordOf(c).Dir)
	switch {
	case err != nil:
		return 0, fmt.Errorf("wait for container %s: %w", id, err)
	case s.Started.IsZero():
		return 0, fmt.Errorf("wait for container %s: it was never started", id)
	}
	code, _ := endOf(nil, s)
	return code, nil
}

// Stopped always returns false: containerd signals no container when it ends.
func (e *Engine) Stopped(context.Context, string) (bool, error) { return false, nil }

// Kill sends SIGKILL through the engine and returns when the container is dead. Its
// restart policy does not restart it.
func (e *Engine) Kill(ctx context.Context, id string) error {
	ctx = e.in(ctx)
	c, err := e.find(ctx, id)
	if err == nil {
		err = e.stopped(c)
	}
	if err == nil {
		err = e.killTask(ctx, c.ID)
	}
	return e.fail(ctx, err, "kill container %s", id)
}

// stopped records that the restart policy must not start a container again.
func (e *Engine) stopped(c containers.Container) error {
	dir := recordOf(c).Dir
	if restartOf(c) == engine.RestartNo || dir == "" {
		return nil
	}
	s, err := readState(dir)
	if err != nil {
		return err
	}
	s.Stopped = true
	if err := writeState(dir, s); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil // without its directory, another call is removing it
}

// killTask kills a container's init and waits until it is dead. A container that does
// not run is no error.
func (e *Engine) killTask(ctx context.Context, id string) error {
	_, err := e.api.TaskService().Kill(ctx, &taskapi.KillRequest{ContainerID: id, Signal: uint32(syscall.SIGKILL)})
	err = errgrpc.ToNative(err)
	if err != nil && !isGone(err) && !errdefs.IsFailedPrecondition(err) {
		if e.ends(ctx, id) {
			return nil
		}
		return err
	}
	// If the init is missing or dead, the shim may not have seen that yet. Until then
	// the shim refuses to delete the task.
	_, err = e.api.TaskService().Wait(ctx, &taskapi.WaitRequest{ContainerID: id})
	if err = errgrpc.ToNative(err); err != nil && !isGone(err) {
		return err
	}
	return nil
}

// endLimit is how long a shim may take to see the end of an init.
const endLimit = 2 * time.Second

// ends reports whether a container's init has ended, or ends within endLimit. A
// failed kill may mean a dead init, which runtimes other than runc report in other
// words.
func (e *Engine) ends(ctx context.Context, id string) bool {
	ctx, cancel := context.WithTimeout(ctx, endLimit)
	defer cancel()
	for {
		t, err := e.task(ctx, id)
		if isGone(err) || err == nil && t.Status == task.Status_STOPPED {
			return true
		}
		if err != nil || tasks.Sleep(ctx, 10*time.Millisecond) != nil {
			return false
		}
	}
}

// deleteTask ends the shim of a dead container. A task that is gone is no error.
func (e *Engine) deleteTask(ctx context.Context, id string) error {
	_, err := e.api.TaskService().Delete(ctx, &taskapi.DeleteTaskRequest{ContainerID: id})
	if err = errgrpc.ToNative(err); err != nil && !isGone(err) {
		return err
	}
	return nil
}

// Remove deletes a container with its anonymous volumes, killing it first if it runs.
// containerd frees its files later.
func (e *Engine) Remove(ctx context.Context, id string) error {
	ctx = e.in(ctx)
	c, err := e.find(ctx, id)
	if isGone(err) {
		return nil
	}
	if err == nil {
		err = e.remove(ctx, c)
	}
	return e.fail(ctx, err, "remove container %s", id)
}

func (e *Engine) remove(ctx context.Context, c containers.Container) error {
	unlock, err := e.locks.lock(ctx, c.ID)
	if err != nil {
		return err
	}
	defer unlock()
	if err := e.stopped(c); err != nil {
		return err
	}
	begun := time.Now()
	for wait := time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		err := e.killTask(ctx, c.ID)
		if err == nil {
			err = e.deleteTask(ctx, c.ID)
		}
		if err == nil {
			return e.forget(ctx, c)
		}
		// Another call is removing it and the shim exited during its answer, or the
		// shim has not seen the end yet.
		early := errdefs.IsFailedPrecondition(err) && time.Since(begun) < endLimit
		if !strings.Contains(err.Error(), "ttrpc: closed") && !early || tasks.Sleep(ctx, wait) != nil {
			return err
		}
	}
}

// forget deletes a container without a task, and its resources. Only the call that
// deletes the container itself frees the rest, because another container may take its
// name.
func (e *Engine) forget(ctx context.Context, c containers.Container) error {
	err := e.api.ContainerService().Delete(ctx, c.ID)
	if isGone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if c.SnapshotKey != "" {
		if err = e.api.SnapshotService(c.Snapshotter).Remove(ctx, c.SnapshotKey); isGone(err) {
			err = nil
		}
	}
	return errors.Join(err, e.freeOwn(c))
}

// freeOwn frees the resources that containerd does not manage.
func (e *Engine) freeOwn(c containers.Container) error {
	dir := recordOf(c).Dir
	if dir == "" {
		return nil
	}
	e.pumps.drop(c.ID)
	s, err := readState(dir)
	if s.Address.IsValid() {
		err = errors.Join(err, e.net.Release(c.ID, s.Address))
	}
	return errors.Join(err, os.RemoveAll(dir))
}

// SetRestartPolicy changes the policy of an existing container.
func (e *Engine) SetRestartPolicy(ctx context.Context, id string, p engine.RestartPolicy) error {
	ctx = e.in(ctx)
	c, err := e.find(ctx, id)
	if err == nil {
		if c.Labels == nil {
			c.Labels = map[string]string{}
		}
		c.Labels[labelRestart] = string(cmp.Or(p, engine.RestartNo))
		_, err = e.api.ContainerService().Update(ctx, c, "labels."+labelRestart)
	}
	return e.fail(ctx, err, "set the restart policy of container %s", id)
}
