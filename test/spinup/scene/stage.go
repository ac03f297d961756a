package scene

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/engine/docker"
	"holdfast/test/lab"
	"holdfast/test/lab/registry"
)

// Stage is an Env with its engines, registries and proxy. It works only inside a lab.
type Stage struct {
	Env
	Private *lab.Engine // behind Env.Engine
	ends    []func() error
}

// Open starts two engines, two registries and a proxy. The caller closes the stage also
// after an error.
func Open(ctx context.Context, options lab.Options) (*Stage, error) {
	s := &Stage{}
	small, err := smallDisk()
	if err != nil {
		return s, err
	}
	for _, start := range []func() error{
		func() (err error) { s.Private, s.Engine, err = s.engine(ctx, options); return err },
		func() (err error) {
			options.Dir, options.InMemory = small, true
			_, s.Full, err = s.engine(ctx, options)
			return err
		},
		func() (err error) { s.Registry, err = s.registry(ctx, registry.Options{}); return err },
		func() (err error) { s.Guarded, err = s.registry(ctx, Login()); return err },
		func() (err error) {
			if s.Proxy, err = registry.StartProxy(s.Registry); err == nil {
				s.ends = append(s.ends, s.Proxy.Stop)
			}
			return err
		},
	} {
		if err := start(); err != nil {
			return s, err
		}
	}
	return s, nil
}

// smallDisk mounts a file system of FullSize in the lab. The mount ends with the lab.
func smallDisk() (string, error) {
	dir, err := os.MkdirTemp("/run", "small-")
	if err != nil {
		return "", err
	}
	return dir, unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", FullSize))
}

func (s *Stage) engine(ctx context.Context, o lab.Options) (*lab.Engine, *docker.Engine, error) {
	private, err := lab.StartEngine(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	s.ends = append(s.ends, private.Stop)
	e, err := docker.Open(ctx, docker.Config{Host: private.Host()})
	if err != nil {
		return nil, nil, err
	}
	s.ends = append(s.ends, e.Close)
	return private, e, nil
}

func (s *Stage) registry(ctx context.Context, o registry.Options) (*registry.Registry, error) {
	r, err := registry.Start(ctx, o)
	if err == nil {
		s.ends = append(s.ends, r.Stop)
	}
	return r, err
}

// Close stops all parts of the stage.
func (s *Stage) Close() error {
	var errs []error
	for i := len(s.ends) - 1; i >= 0; i-- {
		errs = append(errs, s.ends[i]())
	}
	return errors.Join(errs...)
}
