// Command record plays every scene of test/spinup/scene on an engine of its own
// and writes the streams of its pulls to a directory, as fixtures for
// internal/spinup. It needs root. The totals beside the fixtures are made by
// hand, from what it prints: what the registry and the proxy say of each pull.
//
//	go run ./test/spinup/record -out internal/spinup/testdata/docker-20.10
//	go run ./test/spinup/record -out internal/spinup/testdata/docker-29 -path DIR
//
// DIR has the dockerd, containerd, containerd-shim-runc-v2 and runc to use.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/engine/docker"
	"holdfast/internal/lab"
	"holdfast/internal/lab/registry"
	"holdfast/test/spinup/scene"
)

func main() {
	out := flag.String("out", "", "directory for the streams")
	path := flag.String("path", "", "directory with the engine's programs; default: those installed")
	only := flag.String("only", "", "scenes to play, with commas; default: all")
	args := flag.String("args", "", "more arguments for dockerd")
	flag.Parse()
	if !lab.Inside() {
		code, err := lab.Reenter()
		if err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
		}
		os.Exit(code)
	}
	if err := record(*out, *path, *only, strings.Fields(*args)); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func record(out, path, only string, args []string) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	options := lab.Options{Args: args}
	if path != "" {
		options.Dockerd, options.Path = filepath.Join(path, "dockerd"), path
	}
	stage, err := open(ctx, options)
	defer func() { err = errors.Join(err, stage.close()) }()
	if err != nil {
		return err
	}
	for _, s := range scene.Scenes() {
		if only == "" || strings.Contains(","+only+",", ","+s.Name+",") {
			if err := stage.play(ctx, s, out); err != nil {
				return fmt.Errorf("scene %s: %w", s.Name, err)
			}
		}
	}
	return nil
}

// stage is what the scenes play on.
type stage struct {
	env   scene.Env
	ends  []func() error // in the order in which they were begun
	lines int            // of the registry's log that were printed
}

func open(ctx context.Context, options lab.Options) (*stage, error) {
	s := &stage{}
	small, err := smallDisk()
	if err != nil {
		return s, err
	}
	for _, start := range []func() error{
		func() (err error) { s.env.Engine, err = s.engine(ctx, options); return err },
		func() (err error) { options.Dir, options.InMemory = small, true; s.env.Full, err = s.engine(ctx, options); return err },
		func() (err error) { s.env.Registry, err = s.registry(ctx, registry.Options{}); return err },
		func() (err error) { s.env.Guarded, err = s.registry(ctx, scene.Login()); return err },
		func() (err error) {
			s.env.Proxy, err = registry.StartProxy(s.env.Registry)
			if err == nil {
				s.ends = append(s.ends, s.env.Proxy.Stop)
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

// smallDisk mounts a file system of scene.FullSize in the lab; it goes with it.
func smallDisk() (string, error) {
	dir, err := os.MkdirTemp("/run", "small-")
	if err != nil {
		return "", err
	}
	return dir, unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", scene.FullSize))
}

func (s *stage) engine(ctx context.Context, o lab.Options) (*docker.Engine, error) {
	private, err := lab.StartEngine(ctx, o)
	if err != nil {
		return nil, err
	}
	s.ends = append(s.ends, private.Stop)
	e, err := docker.Open(ctx, docker.Config{Host: private.Host()})
	if err != nil {
		return nil, err
	}
	s.ends = append(s.ends, e.Close)
	return e, nil
}

func (s *stage) registry(ctx context.Context, o registry.Options) (*registry.Registry, error) {
	r, err := registry.Start(ctx, o)
	if err == nil {
		s.ends = append(s.ends, r.Stop)
	}
	return r, err
}

func (s *stage) close() error {
	var errs []error
	for i := len(s.ends) - 1; i >= 0; i-- {
		errs = append(errs, s.ends[i]())
	}
	return errors.Join(errs...)
}

func (s *stage) play(ctx context.Context, sc scene.Scene, out string) error {
	info, err := s.env.Engine.Info(ctx)
	if err != nil {
		return err
	}
	streams, err := sc.Play(ctx, s.env)
	if err != nil {
		return err
	}
	for _, stream := range streams {
		var b strings.Builder
		if err := stream.Write(&b, info); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(out, stream.Name+".jsonl"), []byte(b.String()), 0o644); err != nil {
			return err
		}
		fmt.Printf("%s: %d events in %v, error %v\n", stream.Name, len(stream.Events), stream.Ended.Sub(stream.Begun).Round(time.Millisecond), stream.Err)
	}
	return s.truth(streams[0].Begun)
}

// truth prints what the registry and the proxy know.
func (s *stage) truth(begun time.Time) error {
	for _, p := range s.env.Proxy.Passed() {
		fmt.Printf("  proxy %.19s range %q: %d bytes, %v to %v, cut %v\n", p.Blob, p.Range, p.Bytes,
			p.First.Sub(begun).Round(time.Millisecond), p.Last.Sub(begun).Round(time.Millisecond), p.Cut)
	}
	all, err := s.env.Registry.Accesses()
	if err != nil {
		return err
	}
	for _, a := range all[s.lines:] {
		if a.Method == "GET" {
			fmt.Printf("  registry %d %s: %d bytes\n", a.Status, a.Path, a.Bytes)
		}
	}
	s.lines = len(all)
	return nil
}
