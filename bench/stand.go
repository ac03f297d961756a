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
	// close takes away what there is of the experiment, also of one that was
	// not set up to its end.
	close() error
}

// conduct runs an experiment, which err may have kept from being set up, and takes
// it away.
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

// pulling is what experiments that pull stand on.
type pulling struct {
	dir      string
	lab      *lab.Engine
	engine   *docker.Engine
	registry *registry.Registry
}

// open makes a directory and starts an engine, as o says, and a registry. close has
// to be called after an error, too.
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

// config is a configuration of Holdfast on the engine.
func (p *pulling) config() string {
	return fmt.Sprintf("data_dir: %[1]s/data\nrun_dir: %[1]s/run\nengine: {host: %q}\napi: {socket: %[1]s/run/s}\n", p.dir, p.lab.Host())
}

// env has Docker's commands and ours find this engine, and nothing of the user's.
func (p *pulling) env() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + p.dir, "DOCKER_CONFIG=" + p.dir, "DOCKER_HOST=" + p.lab.Host(),
		"HOLDFAST_CONFIG=" + p.configFile(), "HOLDFAST_SOCKET=" + p.dir + "/run/s"}
}

func (p *pulling) configFile() string { return p.dir + "/holdfast.yaml" }

// machine is where and on which engine it runs.
func (p *pulling) machine(ctx context.Context) (Machine, error) {
	info, err := p.engine.Info(ctx)
	return EngineMachine(info), err
}
