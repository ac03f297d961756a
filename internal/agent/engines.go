package agent

import (
	"context"
	"path/filepath"

	"holdfast/internal/control/config"
	"holdfast/internal/hosts/gc"
	"holdfast/internal/hosts/job"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/engine/containerd"
	"holdfast/internal/platform/engine/docker"
)

// Engine is an engine with what garbage collection and jobs need of one. What one
// of them does not have is engine.ErrUnsupported, or empty.
type Engine interface {
	engine.Engine
	gc.Engine
	job.Engine
}

// OpenEngine connects to the engine that the configuration names, which the
// caller closes. One that does not answer is an error that wraps
// holdfast.ErrEngine.
func OpenEngine(ctx context.Context, c config.Config) (Engine, error) {
	if c.Engine.Name != config.Containerd {
		return opened(docker.Open(ctx, docker.Config{Host: c.Engine.Host}))
	}
	return opened(containerd.Open(ctx, containerd.Config{
		Host: c.Engine.Host, Namespace: c.Engine.Namespace, Snapshotter: c.Engine.Snapshotter,
		Dir: filepath.Join(c.DataDir, "containerd"), CgroupParent: c.Engine.CgroupParent,
		Bridge: c.Engine.Bridge, Subnet: c.Engine.Subnet, Masquerade: c.Engine.Masquerade,
		Runtimes: c.Engine.Runtimes,
	}))
}

// opened keeps a nil of one of the types from being an Engine.
func opened[E Engine](e E, err error) (Engine, error) {
	if err != nil {
		return nil, err
	}
	return e, nil
}
