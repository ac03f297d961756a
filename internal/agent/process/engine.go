package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"holdfast"
	"holdfast/internal/control/config"
	"holdfast/internal/hosts/gc"
	"holdfast/internal/hosts/job"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/engine/containerd"
	"holdfast/internal/sessions/runtimes"
)

// Engine is an engine with the methods that garbage collection and jobs use. A method
// that an engine does not support returns engine.ErrUnsupported or an empty result.
type Engine interface {
	engine.Engine
	gc.Engine
	job.Engine
}

// OpenEngine connects to the engine that the configuration names. The caller closes
// it. An engine that does not answer is an error that wraps holdfast.ErrEngine.
func OpenEngine(ctx context.Context, c config.Config) (Engine, error) {
	if c.Engine.Name != config.Containerd {
		return openDocker(ctx, c)
	}
	return opened(containerd.Open(ctx, containerd.Config{
		Host: c.Engine.Host, Namespace: c.Engine.Namespace, Snapshotter: c.Engine.Snapshotter,
		Dir: filepath.Join(c.DataDir, "containerd"), CgroupParent: c.Engine.CgroupParent,
		Bridge: c.Engine.Bridge, Subnet: c.Engine.Subnet, Masquerade: c.Engine.Masquerade,
		Runtimes: c.Engine.Runtimes,
	}))
}

// OpenSuitable is OpenEngine for an engine that can serve sessions; another one is an
// error. It returns what the engine says of itself.
func OpenSuitable(ctx context.Context, c config.Config) (Engine, engine.Info, error) {
	e, err := OpenEngine(ctx, c)
	if err != nil {
		return nil, engine.Info{}, err
	}
	info, err := e.Info(ctx)
	if err == nil {
		err = suitable(info)
	}
	if err != nil {
		return nil, info, errors.Join(err, e.Close())
	}
	if d, ok := e.(*Docker); ok && info.Remapped {
		d.lacking = errRemapped
	}
	return e, info, nil
}

// suitable returns an error if no agent can serve sessions on this engine.
func suitable(info engine.Info) error {
	switch {
	case info.Socket == "":
		// Containers are killed by their pids, which are valid on the host of the engine
		// only.
		return holdfast.WithHint(errors.New("engine.host: the engine is not behind a unix socket, so it may run on another host"),
			"run the agent on the engine's host, with engine.host: unix:///var/run/docker.sock")
	case info.Name == engine.Podman:
		return holdfast.WithHint(errors.New("engine.host: the engine is Podman, which is not supported for sessions"),
			"use Docker (engine.host: unix:///var/run/docker.sock) or containerd (engine.name: containerd)")
	case info.Rootless:
		return holdfast.WithHint(errors.New("engine.host: the engine is rootless, so this host cannot reach the addresses of its containers"),
			"use an engine that runs as root, with engine.host: unix:///var/run/docker.sock")
	}
	return nil
}

// Tried is an engine that runs containers.
type Tried struct {
	Info     engine.Info
	Runtimes []string // those that ran a container
	Lacking  error    // see Lacking
}

// TryEngine checks that an agent with this configuration can run containers: it connects
// to the engine, and runs one container of a few hundred bytes with each runtime that the
// templates name.
func TryEngine(ctx context.Context, c config.Config) (tried Tried, err error) {
	e, info, err := OpenSuitable(ctx, c)
	if err != nil {
		return tried, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	tester, ok := e.(engine.Tester)
	if !ok {
		return tried, fmt.Errorf("%s: %w", info.Name, engine.ErrUnsupported)
	}
	tried.Info, tried.Lacking = info, Lacking(e)
	for _, t := range runtimes.Trials(c.SessionTemplates()) {
		if err := tester.Try(ctx, t); err != nil {
			return tried, err
		}
		tried.Runtimes = append(tried.Runtimes, cmp.Or(t.Runtime, runtimes.DefaultName))
	}
	return tried, nil
}

// opened returns a nil interface, and not an interface with a nil pointer, on an error.
func opened[E Engine](e E, err error) (Engine, error) {
	if err != nil {
		return nil, err
	}
	return e, nil
}
