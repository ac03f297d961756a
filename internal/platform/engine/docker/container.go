package docker

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/tasks"
)

// Create makes a container and returns its full id.
func (e *Engine) Create(ctx context.Context, s engine.Spec) (string, error) {
	mounts, err := mountsOf(s.Mounts)
	if err != nil {
		return "", fmt.Errorf("create container %s: %w", s.Name, err)
	}
	platform, err := engine.ParsePlatform(s.Platform)
	if err != nil {
		return "", fmt.Errorf("create container %s: %w", s.Name, err)
	}
	host := &container.HostConfig{
		NetworkMode:   container.NetworkMode(s.Network),
		PidMode:       container.PidMode(s.PIDMode),
		RestartPolicy: restartPolicy(s.Restart),
		Runtime:       s.Runtime,
		Mounts:        mounts,
		Resources: container.Resources{
			Memory:   s.Memory,
			NanoCPUs: int64(s.CPUs * 1e9),
		},
	}
	if s.PIDs > 0 {
		host.PidsLimit = &s.PIDs
	}
	if s.Init {
		host.Init = &s.Init
	}
	if s.NoCapabilities {
		host.CapDrop = []string{"ALL"}
	}
	host.CapAdd, host.ReadonlyRootfs = s.Capabilities, s.ReadOnlyRoot
	if host.SecurityOpt, err = securityOf(s); err != nil {
		return "", fmt.Errorf("create container %s: %w", s.Name, err)
	}
	res, err := e.api().ContainerCreate(ctx, client.ContainerCreateOptions{
		Name: s.Name,
		Config: &container.Config{
			Image:    s.Image,
			Cmd:      s.Command,
			Env:      s.Env,
			Labels:   s.Labels,
			Hostname: s.Hostname,

			Entrypoint: s.Entrypoint,
			WorkingDir: s.WorkDir,
		},
		HostConfig:       host,
		NetworkingConfig: endpoints(s),
		Platform:         platform,
	})
	return res.ID, e.fail(ctx, err, "create container %s", s.Name)
}

// securityOf translates the security options. The API takes the text of a seccomp
// profile.
func securityOf(s engine.Spec) ([]string, error) {
	var opts []string
	if s.NoNewPrivileges {
		opts = append(opts, "no-new-privileges")
	}
	if s.Seccomp == "" {
		return opts, nil
	}
	text, err := engine.ReadSeccomp(s.Seccomp)
	if err != nil {
		return nil, err
	}
	return append(opts, "seccomp="+string(text)), nil
}

// mountsOf translates mounts. A bind in this form, unlike one in Binds, fails if its
// source does not exist: the engine makes no directory on the host.
func mountsOf(specs []engine.Mount) ([]mount.Mount, error) {
	var mounts []mount.Mount
	for _, m := range specs {
		kind := mount.Type(m.Type)
		switch kind {
		case mount.TypeBind, mount.TypeVolume, mount.TypeTmpfs:
		default:
			return nil, fmt.Errorf("mount at %s has the type %q, not bind, volume or tmpfs", m.Target, m.Type)
		}
		mounts = append(mounts, mount.Mount{Type: kind, Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly})
	}
	return mounts, nil
}

func restartPolicy(p engine.RestartPolicy) container.RestartPolicy {
	return container.RestartPolicy{Name: container.RestartPolicyMode(cmp.Or(p, engine.RestartNo))}
}

// Start starts a created container and returns when its init runs.
func (e *Engine) Start(ctx context.Context, id string) error {
	_, err := e.api().ContainerStart(ctx, id, client.ContainerStartOptions{})
	return e.fail(ctx, err, "start container %s", id)
}

// Wait returns a container's exit code when it has stopped.
func (e *Engine) Wait(ctx context.Context, id string) (int, error) {
	// cancel ends the request, and with it the client's goroutine.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// For a container that was never started the engine returns 0 at once.
	c, err := e.inspect(ctx, id)
	if err != nil {
		return 0, err
	}
	if c.State != nil && c.State.Status == container.StateCreated {
		return 0, fmt.Errorf("wait for container %s: it was never started", id)
	}
	wait := e.api().ContainerWait(ctx, c.ID, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	select {
	case err := <-wait.Error:
		return 0, e.fail(ctx, err, "wait for container %s", id)
	case end := <-wait.Result:
		if end.Error != nil && end.Error.Message != "" {
			return 0, fmt.Errorf("wait for container %s: %s", id, end.Error.Message)
		}
		return int(end.StatusCode), nil
	}
}

// List returns the containers that carry all the labels, oldest first.
func (e *Engine) List(ctx context.Context, labels map[string]string) ([]engine.Container, error) {
	res, err := e.api().ContainerList(ctx, client.ContainerListOptions{All: true, Filters: labelFilters(labels)})
	if err != nil {
		return nil, e.fail(ctx, err, "list containers")
	}
	list := make([]engine.Container, 0, len(res.Items))
	for _, c := range res.Items {
		list = append(list, engine.Container{
			ID:      c.ID,
			Name:    nameOf(c.Names),
			Image:   c.Image,
			Labels:  c.Labels,
			State:   string(c.State),
			Created: time.Unix(c.Created, 0),
		})
	}
	// The engine sorts by creation, newest first, at a finer resolution than the
	// seconds in its answer.
	slices.Reverse(list)
	return list, nil
}

// nameOf is a container's own name among those that links give it (/a/b).
func nameOf(names []string) string {
	for _, n := range names {
		if n = strings.TrimPrefix(n, "/"); !strings.Contains(n, "/") {
			return n
		}
	}
	return ""
}

// labelFilters selects objects with all the labels; "" matches any value.
func labelFilters(labels map[string]string) client.Filters {
	filters := client.Filters{}
	for key, value := range labels {
		if value != "" {
			key += "=" + value
		}
		filters.Add("label", key)
	}
	return filters
}

// Kill sends SIGKILL through the engine, which answers when the container is dead.
func (e *Engine) Kill(ctx context.Context, id string) error {
	_, err := e.api().ContainerKill(ctx, id, client.ContainerKillOptions{Signal: "KILL"})
	if errdefs.IsConflict(err) && strings.Contains(err.Error(), "is not running") {
		return nil
	}
	return e.fail(ctx, err, "kill container %s", id)
}

// Remove deletes a container with its anonymous volumes, killing it first if it
// runs, and returns when it is gone.
func (e *Engine) Remove(ctx context.Context, id string) error {
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		_, err := e.api().ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		switch {
		case err == nil || errdefs.IsNotFound(err):
			return nil
		case !removesLater(err):
			return e.fail(ctx, err, "remove container %s", id)
		}
		if tasks.Sleep(ctx, wait) != nil {
			return e.fail(ctx, err, "remove container %s", id)
		}
	}
}

// removesLater reports whether the same removal succeeds in a moment. Another call may be removing
// the container: a further request shows when that is done, and takes over if it fails. Or the
// container has ended between the engine's look and its kill (moby, daemon/delete.go
// cleanupContainer).
func removesLater(err error) bool {
	text := err.Error()
	return errdefs.IsConflict(err) && strings.Contains(text, "already in progress") ||
		strings.Contains(text, "ould not kill") && strings.Contains(text, "is not running")
}

// SetRestartPolicy changes the policy of an existing container.
func (e *Engine) SetRestartPolicy(ctx context.Context, id string, p engine.RestartPolicy) error {
	policy := restartPolicy(p)
	_, err := e.api().ContainerUpdate(ctx, id, client.ContainerUpdateOptions{RestartPolicy: &policy})
	return e.fail(ctx, err, "set the restart policy of container %s", id)
}
