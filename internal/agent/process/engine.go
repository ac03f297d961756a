package process

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
		return opened(docker.Open(ctx, docker.Config{Host: c.Engine.Host}))
	}
	return opened(containerd.Open(ctx, containerd.Config{
		Host: c.Engine.Host, Namespace: c.Engine.Namespace, Snapshotter: c.Engine.Snapshotter,
		Dir: filepath.Join(c.DataDir, "containerd"), CgroupParent: c.Engine.CgroupParent,
		Bridge: c.Engine.Bridge, Subnet: c.Engine.Subnet, Masquerade: c.Engine.Masquerade,
		Runtimes: c.Engine.Runtimes,
	}))
}

// opened returns a nil interface, and not an interface with a nil pointer, on an error.
func opened[E Engine](e E, err error) (Engine, error) {
	if err != nil {
		return nil, err
	}
	return e, nil
}
