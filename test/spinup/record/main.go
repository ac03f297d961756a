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

	"holdfast/internal/lab"
	"holdfast/test/spinup/scene"
)

func main() {
	out := flag.String("out", "", "directory for the streams")
	path := flag.String("path", "", "directory with the engine's programs; default: those installed")
	only := flag.String("only", "", "scenes to play, with commas; default: all")
	name := flag.String("engine", "", "name and version of the engine, where it does not say")
	args := flag.String("args", "", "more arguments for dockerd")
	flag.Parse()
	if !lab.Inside() {
		code, err := lab.Reenter()
		if err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
		}
		os.Exit(code)
	}
	if err := record(*out, *path, *only, *name, strings.Fields(*args)); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func record(out, path, only, name string, args []string) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	options := lab.Options{Args: args}
	if path != "" {
		options.Dockerd, options.Path = filepath.Join(path, "dockerd"), path
	}
	stage, err := scene.Open(ctx, options)
	defer func() { err = errors.Join(err, stage.Close()) }()
	if err != nil {
		return err
	}
	r := &recorder{stage: stage, out: out, engine: name}
	for _, s := range scene.Scenes() {
		if only == "" || strings.Contains(","+only+",", ","+s.Name+",") {
			if err := r.play(ctx, s); err != nil {
				return fmt.Errorf("scene %s: %w", s.Name, err)
			}
		}
	}
	return nil
}

// recorder plays scenes and keeps their streams.
type recorder struct {
	stage  *scene.Stage
	out    string
	engine string
	lines  int // of the registry's log that were printed
}

func (r *recorder) play(ctx context.Context, sc scene.Scene) error {
	info, err := r.stage.Engine.Info(ctx)
	if err != nil {
		return err
	}
	if r.engine != "" {
		info.Name, info.Version, _ = strings.Cut(r.engine, " ")
	}
	streams, err := sc.Play(ctx, r.stage.Env)
	if err != nil {
		return err
	}
	for _, stream := range streams {
		var b strings.Builder
		if err := stream.Write(&b, info); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(r.out, stream.Name+".jsonl"), []byte(b.String()), 0o644); err != nil {
			return err
		}
		fmt.Printf("%s: %d events in %v, error %v\n", stream.Name, len(stream.Events), stream.Ended.Sub(stream.Begun).Round(time.Millisecond), stream.Err)
	}
	return r.truth(streams[0].Begun)
}

// truth prints what the registry and the proxy know.
func (r *recorder) truth(begun time.Time) error {
	for _, p := range r.stage.Proxy.Passed() {
		fmt.Printf("  proxy %.19s range %q: %d bytes, %v to %v, cut %v\n", p.Blob, p.Range, p.Bytes,
			p.First.Sub(begun).Round(time.Millisecond), p.Last.Sub(begun).Round(time.Millisecond), p.Cut)
	}
	all, err := r.stage.Registry.Accesses()
	if err != nil {
		return err
	}
	for _, a := range all[r.lines:] {
		if a.Method == "GET" {
			fmt.Printf("  registry %d %s: %d bytes\n", a.Status, a.Path, a.Bytes)
		}
	}
	r.lines = len(all)
	return nil
}
