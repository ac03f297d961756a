package bench

import (
	"context"
	"errors"
	"fmt"
	"os"

	"holdfast/internal/platform/engine/docker"
	"holdfast/test/lab"
	"holdfast/test/lab/registry"
)

// experiment is one run of a benchmark.
type experiment interface {
	run(context.Context) (Result, error)
	// close removes everything that the experiment has created, also after a failed
	// setup.
	close() error
}

// conduct runs an experiment and closes it. If err is not nil, the setup failed:
// conduct only closes it and returns err.
func conduct(ctx context.Context, x experiment, err error) (Result, error) {
	if err != nil {
		return Result{}, errors.Join(err, x.close())
	}
	res, err := x.run(ctx)
	if err = errors.Join(err, x.close()); err != nil {
		return Result{}, err
	}
	return res, nil
}

// pulling is the common setup of experiments that pull images.
type pulling struct {
	dir      string
	lab      *lab.Engine
	engine   *docker.Engine
	registry *registry.Registry
}

// open makes a directory and starts an engine with the options o, and a registry. The
// caller must call close after an error, too.
func (p *pulling) open(ctx context.Context, o lab.Options) error {
	var err error
	if p.dir, err = os.MkdirTemp("", "holdfast-bench-"); err != nil {
		return err
	}
	if p.lab, err = lab.StartEngine(ctx, o); err != nil {
		return err
	}
	if p.engine, err = docker.Open(ctx, docker.Config{Host: p.lab.Host()}); err != nil {
		return err
	}
	p.registry, err = registry.Start(ctx, registry.Options{})
	return err
}

func (p *pulling) close() error {
	var errs []error
	if p.registry != nil {
		errs = append(errs, p.registry.Stop())
	}
	if p.engine != nil {
		errs = append(errs, p.engine.Close())
	}
	if p.lab != nil {
		errs = append(errs, p.lab.Stop())
	}
	if p.dir != "" {
		errs = append(errs, os.RemoveAll(p.dir))
	}
	return errors.Join(errs...)
}

// config writes a configuration of Holdfast for the engine.
func (p *pulling) config() string {
	return fmt.Sprintf("data_dir: %[1]s/data\nrun_dir: %[1]s/run\nengine: {host: %q}\napi: {socket: %[1]s/run/s}\n", p.dir, p.lab.Host())
}

// env returns an environment in which docker and holdfast use this engine and no configuration of the user.
func (p *pulling) env() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + p.dir, "DOCKER_CONFIG=" + p.dir, "DOCKER_HOST=" + p.lab.Host(),
		"HOLDFAST_CONFIG=" + p.configFile(), "HOLDFAST_SOCKET=" + p.dir + "/run/s"}
}

func (p *pulling) configFile() string { return p.dir + "/holdfast.yaml" }

// machine describes the host and the engine.
func (p *pulling) machine(ctx context.Context) (Machine, error) {
	info, err := p.engine.Info(ctx)
	return EngineMachine(info), err
}
