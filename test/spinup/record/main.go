// Command record plays every scene of test/spinup/scene on a private engine, and writes
// the streams of its pulls to a directory, as fixtures for internal/hosts/spinup. It
// needs root. The totals beside the fixtures are calculated by hand from its output: the
// logs of the registry and of the proxy for each pull.
//
//	go run ./test/spinup/record -out internal/hosts/spinup/testdata/docker-20.10
//	go run ./test/spinup/record -out internal/hosts/spinup/testdata/docker-29 -path DIR
//	go run ./test/spinup/record -out internal/hosts/spinup/testdata/docker-20.10 -only timed -truth
//
// DIR has the dockerd, containerd, containerd-shim-runc-v2 and runc to use. With -truth
// it also writes the times of the downloads and extractions of each stream, from the
// proxy and the engine's debug log.
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

	"holdfast/test/lab"
	"holdfast/test/lab/registry"
	"holdfast/test/spinup/scene"
)

func main() {
	out := flag.String("out", "", "directory for the streams")
	path := flag.String("path", "", "directory with the engine's programs; default: those installed")
	only := flag.String("only", "", "scenes to play, with commas; default: all")
	name := flag.String("engine", "", "name and version of the engine, if it does not report them")
	args := flag.String("args", "", "more arguments for dockerd")
	truth := flag.Bool("truth", false, "also write the times from the proxy and the engine's debug log")
	flag.Parse()
	if !lab.Inside() {
		code, err := lab.Reenter()
		if err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
		}
		os.Exit(code)
	}
	options := lab.Options{Args: strings.Fields(*args)}
	if *truth {
		options.Args = append(options.Args, "--debug")
	}
	if *path != "" {
		options.Dockerd, options.Path = filepath.Join(*path, "dockerd"), *path
	}
	if err := record(&recorder{out: *out, engine: *name, truth: *truth}, options, *only); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func record(r *recorder, options lab.Options, only string) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	stage, err := scene.Open(ctx, options)
	defer func() { err = errors.Join(err, stage.Close()) }()
	if err != nil {
		return err
	}
	r.stage = stage
	for _, s := range scene.Scenes() {
		if only == "" || strings.Contains(","+only+",", ","+s.Name+",") {
			if err := r.play(ctx, s); err != nil {
				return fmt.Errorf("scene %s: %w", s.Name, err)
			}
		}
	}
	return nil
}

// recorder plays scenes and writes their streams.
type recorder struct {
	stage  *scene.Stage
	out    string
	engine string
	truth  bool
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
	passed := r.stage.Proxy.Passed()
	if r.truth {
		if err := r.writeTruth(streams[0], passed); err != nil {
			return err
		}
	}
	return r.print(streams[0].Begun, passed)
}

// writeTruth writes the known times of a stream.
func (r *recorder) writeTruth(s scene.Stream, passed []registry.Passed) error {
	applied, err := scene.Applied(r.stage.Private.LogFile(), s.Begun)
	if err != nil {
		return err
	}
	var b strings.Builder
	if err := (scene.Truth{Download: scene.Passing(passed, s.Sizes), Extract: applied}).Write(&b, s.Begun); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, s.Name+".truth.json"), []byte(b.String()), 0o644)
}

// print prints the logs of the registry and of the proxy.
func (r *recorder) print(begun time.Time, passed []registry.Passed) error {
	for _, p := range passed {
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
