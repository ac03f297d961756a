package enginetest

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/owner"
	"holdfast/internal/platform/linux/tinyelf"
)

// Runtimes is an engine that knows several runtimes.
type Runtimes struct {
	Engine interface {
		engine.Trier
		engine.Tester
	}
	Image string   // as Setup.Image
	Good  []string // runtimes that work, the default's name too
	// Broken are runtimes that start nothing, each with a word of its error.
	Broken map[string]string
	// Sandbox is one of Good. Saver saves its containers, and their start is a
	// restore if Saver has staged an image for them.
	Sandbox string
	Saver   Saver
}

// Saver saves containers with memory and files. internal/platform/runsc implements
// it.
type Saver interface {
	Checkpoint(ctx context.Context, id string, init int, dir string) error
	Stage(id, dir string) error
	Used(id string) bool
	Unstage(id string) error
}

// RunRuntimes runs the tests of runtimes. dir is an empty directory on the file
// system of staged images.
func RunRuntimes(t *testing.T, r Runtimes, dir string) {
	s := &boxes{suite: &suite{Setup: Setup{Engine: r.Engine, Image: r.Image}}, Runtimes: r, dir: dir}
	t.Run("Trials", s.trials)
	t.Run("LeftTrials", s.leftTrials)
	t.Run("UnknownRuntime", s.unknown)
	t.Run("Box", s.box)
	t.Run("GoesOn", s.goesOn)
}

// boxes is one run.
type boxes struct {
	*suite
	Runtimes
	dir string
}

// trials: Try detects whether a runtime works, and leaves nothing behind.
func (s *boxes) trials(t *testing.T) {
	before, err := s.Engine.Images(s.context(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range s.Good {
		if err := s.Engine.Try(s.context(t), engine.Trial{Runtime: name, Network: "none"}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := s.Engine.Try(s.context(t), engine.Trial{}); err != nil {
		t.Errorf("the default runtime, with a network: %v", err)
	}
	for name, word := range s.Broken {
		err := s.Engine.Try(s.context(t), engine.Trial{Runtime: name, Network: "none"})
		if !errors.Is(err, engine.ErrNoStart) || errors.Is(err, holdfast.ErrNotFound) || !strings.Contains(err.Error(), word) || holdfast.HintOf(err) == "" {
			t.Errorf("%s: %v (%s)", name, err, holdfast.HintOf(err))
		}
	}
	err = s.Engine.Try(s.context(t), engine.Trial{Runtime: "kata"})
	if !errors.Is(err, holdfast.ErrNotFound) || !strings.Contains(err.Error(), s.Sandbox) || holdfast.HintOf(err) == "" {
		t.Errorf("kata: %v (%s)", err, holdfast.HintOf(err))
	}
	after, err := s.Engine.Images(s.context(t))
	if err != nil || len(after) != len(before) {
		t.Errorf("%d images became %d: %v", len(before), len(after), err)
	}
	left, err := s.Engine.List(s.context(t), nil)
	if err != nil || len(left) != 0 {
		t.Errorf("%d containers are left: %v", len(left), err)
	}
}

// leftTrials: a trial removes what a killed process left of another one. It leaves the
// trial of a live process, and a container that has a trial's labels from its image.
func (s *boxes) leftTrials(t *testing.T) {
	self, err := owner.Self()
	if err != nil {
		t.Fatal(err)
	}
	killed := self
	killed.Start++ // a reused pid
	ctx := s.context(t)
	before, err := s.Engine.Images(ctx)
	if err != nil {
		t.Fatal(err)
	}
	keep := map[string]bool{}
	make1 := func(ref, by string, running bool) {
		labels := map[string]string{engine.LabelTrial: by}
		program, err := tinyelf.Pause(runtime.GOARCH)
		if err != nil {
			t.Fatal(err)
		}
		archive, err := engine.ProgramImage(ref, &tar.Header{Name: "pause", Mode: 0o755}, program, v1.ConfigFile{
			OS: "linux", Architecture: runtime.GOARCH, Author: ref, Config: v1.Config{Labels: labels, Entrypoint: []string{"/pause"}},
		})
		if err == nil {
			err = s.Engine.Load(ctx, archive)
		}
		if err != nil {
			t.Fatal(err)
		}
		id, err := s.Engine.Create(ctx, engine.Spec{Image: ref, Labels: labels, Network: "none"})
		if err == nil && running {
			err = s.Engine.Start(ctx, id)
		}
		if err != nil {
			t.Fatal(err)
		}
		if by == killed.String() && strings.HasPrefix(ref, "holdfast-trial:") {
			return
		}
		keep[id] = true
		t.Cleanup(func() {
			ctx := context.WithoutCancel(t.Context())
			if err := errors.Join(s.Engine.Remove(ctx, id), s.Engine.RemoveImage(ctx, ref)); err != nil {
				t.Error(err)
			}
		})
	}
	make1("holdfast-trial:1", killed.String(), true)
	make1("holdfast-trial:2", killed.String(), false)
	make1("holdfast-trial:3", self.String(), false)
	make1("made-of-a-trial:1", killed.String(), false)
	if err := s.Engine.Try(ctx, engine.Trial{Network: "none"}); err != nil {
		t.Error(err)
	}
	list, err := s.Engine.List(ctx, map[string]string{engine.LabelTrial: ""})
	if err != nil || len(list) != len(keep) {
		t.Errorf("%d containers are left, not %d: %v", len(list), len(keep), err)
	}
	for _, c := range list {
		if !keep[c.ID] {
			t.Errorf("%s of %s is left", c.ID, c.Image)
		}
	}
	if after, err := s.Engine.Images(ctx); err != nil || len(after) != len(before)+len(keep) {
		t.Errorf("%d images became %d, %d of them kept: %v", len(before), len(after), len(keep), err)
	}
}

// unknown: a container of an unknown runtime does not run under another one.
func (s *boxes) unknown(t *testing.T) {
	spec := s.spec()
	spec.Runtime = "kata"
	id, err := s.Engine.Create(s.context(t), spec)
	if err == nil {
		t.Cleanup(func() {
			if err := s.Engine.Remove(context.WithoutCancel(t.Context()), id); err != nil {
				t.Error(err)
			}
		})
		err = s.Engine.Start(s.context(t), id)
	}
	if err == nil || !strings.Contains(err.Error(), "kata") {
		t.Errorf("a container of it: %v", err)
	}
}

// counter counts in its memory, prints each number with the content of its files, and
// serves the last number over HTTP.
const counter = `mkdir /www; httpd -h /www -p 8080; echo root > /kept; echo tmpfs > /tmp/kept; i=0
while :; do i=$((i+1)); echo $i > /www/new; mv /www/new /www/n; echo "$i $(cat /kept /tmp/kept | tr '\n' ' ')"; sleep 0.05; done`

func (s *boxes) counts() engine.Spec {
	spec := s.spec("sh", "-c", counter)
	spec.Runtime, spec.Init, spec.NoNewPrivileges, spec.Memory = s.Sandbox, true, true, 256<<20
	spec.Mounts = []engine.Mount{{Type: "tmpfs", Target: "/tmp"}}
	spec.Hostname = spec.Name
	return spec
}

// said returns the number in the nth line that a container has printed, from 0, once
// there are more than n lines. -1 is the last line.
func (s *boxes) said(t *testing.T, id string, n int) int {
	t.Helper()
	var lines []string
	for ctx := s.context(t); len(lines) <= max(n, 0); time.Sleep(10 * time.Millisecond) {
		var out strings.Builder
		if err := s.Engine.Logs(ctx, id, engine.LogOptions{Tail: -1}, &out); err != nil {
			t.Fatal(err)
		}
		lines = strings.Split(out.String(), "\n")
		lines = lines[:len(lines)-1] // the last one may be incomplete
	}
	line := lines[len(lines)-1]
	if n >= 0 {
		line = lines[n]
	}
	first, rest, _ := strings.Cut(line, " ")
	number, err := strconv.Atoi(first)
	if err != nil || strings.TrimSpace(rest) != "root tmpfs" {
		t.Fatalf("it said %q: %v", line, err)
	}
	return number
}

// served is the number that the container's server returns over its network.
func (s *boxes) served(t *testing.T, id string) int {
	t.Helper()
	c := s.inspect(t, id)
	if len(c.Addresses) == 0 {
		t.Fatalf("it has no address: %+v", c)
	}
	ctx := s.context(t)
	var last error
	for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		n, err := get(ctx, "http://"+c.Addresses[0]+":8080/n")
		if err == nil {
			return n
		}
		last = err
	}
	t.Fatalf("its server does not answer: %v", last)
	return 0
}

func get(ctx context.Context, url string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s, %w", res.Status, err)
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// box tests a container in a sandbox: it is a sandbox, is reachable, runs commands,
// and dies.
func (s *boxes) box(t *testing.T) {
	id := s.start(t, s.counts())
	if n := s.served(t, id); n < 1 {
		t.Errorf("it serves %d", n)
	}
	c := s.inspect(t, id)
	if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", c.Pid)); err != nil || !strings.Contains(string(name), "sandbox") {
		t.Errorf("its init on the host is %q, %v", name, err)
	}
	if got := s.shell(t, id, "cat /proc/version; hostname"); !strings.Contains(got, "gvisor") || !strings.HasSuffix(got, c.Name) {
		t.Errorf("inside it is %q", got)
	}
	code, err := s.Engine.Exec(s.context(t), id, engine.Exec{Command: []string{"sh", "-c", "exit 3"}})
	if code != 3 || err != nil {
		t.Errorf("a command: exit code %d, %v", code, err)
	}
	if err := s.Engine.Kill(s.context(t), id); err != nil {
		t.Fatal(err)
	}
	if c := s.inspect(t, id); c.Running() || c.ExitCode != 137 {
		t.Errorf("after a kill: %s, exit code %d", c.State, c.ExitCode)
	}
	if err := s.Engine.Kill(s.context(t), id); err != nil {
		t.Errorf("kill of a dead container: %v", err)
	}
}

// save checkpoints a container, and waits until the engine reports its end.
func (s *boxes) save(t *testing.T, id string) (dir string) {
	t.Helper()
	dir = filepath.Join(s.dir, "image-"+id[:12])
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.Saver.Checkpoint(s.context(t), id, s.inspect(t, id).Pid, dir); err != nil {
		t.Fatal(err)
	}
	s.waitExit(t, id)
	return dir
}

// goesOn: a saved container continues in another one with the next number, several
// times. An image of a different container does not start.
func (s *boxes) goesOn(t *testing.T) {
	old := s.start(t, s.counts())
	s.said(t, old, 3)
	var dir string
	for range 2 {
		dir = s.save(t, old)
		next := s.create(t, s.counts())
		spoiled := filepath.Join(s.dir, "spoiled-"+next[:12])
		if err := os.CopyFS(spoiled, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		if err := s.Saver.Stage(next, dir); err != nil {
			t.Fatal(err)
		}
		if err := s.Engine.Start(s.context(t), next); err != nil {
			t.Fatal(err)
		}
		used := s.Saver.Used(next)
		if err := s.Saver.Unstage(next); !used || err != nil {
			t.Errorf("used %v, %v", used, err)
		}
		n := s.said(t, next, 0)
		last := s.said(t, old, -1) // all its output is read by now
		if n != last+1 {
			t.Errorf("%d comes after %d", n, last)
		}
		if n := s.served(t, next); n <= last {
			t.Errorf("it serves %d after %d", n, last)
		}
		if c := s.inspect(t, next); s.shell(t, next, "hostname") != c.Name {
			t.Errorf("its host name is not %s", c.Name)
		}
		old, dir = next, spoiled
	}
	s.spoiled(t, dir)
}

// spoiled: a container with an incomplete image does not start, and is removed.
func (s *boxes) spoiled(t *testing.T, dir string) {
	if err := os.Truncate(filepath.Join(dir, "checkpoint.img"), 1000); err != nil {
		t.Fatal(err)
	}
	id := s.create(t, s.counts())
	if err := s.Saver.Stage(id, dir); err != nil {
		t.Fatal(err)
	}
	err := s.Engine.Start(s.context(t), id)
	if c := s.inspect(t, id); err == nil || c.Running() {
		t.Errorf("an incomplete image: started %v, %s", err == nil, c.State)
	}
	if err := s.Saver.Unstage(id); err != nil {
		t.Error(err)
	}
}
