package runsc_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/engine/docker"
	"holdfast/internal/platform/runsc"
	"holdfast/internal/sessions/kill"
	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// patience is a deadline against hanging, not an expectation.
const patience = time.Minute

// stage is an engine with a runtime that restores.
type stage struct {
	t      *testing.T
	ctx    context.Context
	engine *docker.Engine
	runsc  runsc.Runtime
	dir    string // on the file system of the images
}

func newStage(t *testing.T) *stage {
	t.Helper()
	dir := t.TempDir()
	s := &stage{t: t, dir: dir, runsc: runsc.Runtime{Program: labtest.Runsc(t), Images: filepath.Join(dir, "staged")}}
	if err := os.Mkdir(s.runsc.Images, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.runsc.Check(); err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(dir, "runtime")
	if err := s.runsc.Install(script); err != nil {
		t.Fatal(err)
	}
	private := labtest.Private(t, lab.Options{Args: []string{"--add-runtime=runsc=" + script}})
	busybox, err := lab.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	if err := private.Import(t.Context(), busybox); err != nil {
		t.Fatal(err)
	}
	e, err := docker.Open(t.Context(), docker.Config{Host: private.Host()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	s.engine = e
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	s.ctx = ctx
	return s
}

// counter counts in its memory. It prints each number with the content of its files.
const counter = `i=0; echo root > /kept; echo tmpfs > /tmp/kept
while :; do i=$((i+1)); echo "$i $(cat /kept /tmp/kept | tr '\n' ' ')"; sleep 0.05; done`

func (s *stage) create(name string, change func(*engine.Spec)) string {
	s.t.Helper()
	spec := engine.Spec{
		Name: name, Hostname: name, Image: labtest.Busybox, Runtime: "runsc", Command: []string{"sh", "-c", counter},
		Env: []string{"EPOCH=" + name}, Init: true, NoNewPrivileges: true, Memory: 256 << 20,
		Mounts: []engine.Mount{{Type: "tmpfs", Target: "/tmp"}},
	}
	if change != nil {
		change(&spec)
	}
	id, err := s.engine.Create(s.ctx, spec)
	if err != nil {
		s.t.Fatal(err)
	}
	return id
}

func (s *stage) start(id string) {
	s.t.Helper()
	if err := s.engine.Start(s.ctx, id); err != nil {
		s.t.Fatal(err)
	}
}

// said returns the lines that a container has printed, once there are more than n.
func (s *stage) said(id string, n int) []string {
	s.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		var out bytes.Buffer
		if err := s.engine.Logs(s.ctx, id, engine.LogOptions{Tail: -1}, &out); err != nil {
			s.t.Fatal(err)
		}
		if lines := strings.Split(strings.TrimSpace(out.String()), "\n"); len(lines) > n && lines[0] != "" {
			return lines
		}
	}
	s.t.Fatalf("container %.12s says too little", id)
	return nil
}

func (s *stage) init(id string) int {
	s.t.Helper()
	c, err := s.engine.Inspect(s.ctx, id)
	if err != nil {
		s.t.Fatal(err)
	}
	return c.Pid
}

// save checkpoints a container and waits for its end.
func (s *stage) save(id string) (dir string) {
	s.t.Helper()
	init := s.init(id)
	target, err := kill.Open(id, "", init)
	if err != nil {
		s.t.Fatal(err)
	}
	defer target.Close()
	dir = filepath.Join(s.dir, "image-"+id[:12])
	if err := os.Mkdir(dir, 0o700); err != nil {
		s.t.Fatal(err)
	}
	if err := s.runsc.Checkpoint(s.ctx, id, init, dir); err != nil {
		s.t.Fatal(err)
	}
	for end := time.Now().Add(patience); !target.Init().Exited(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatal("the container does not end")
		}
	}
	return dir
}

func number(t *testing.T, line string) int {
	t.Helper()
	first, rest, _ := strings.Cut(line, " ")
	n, err := strconv.Atoi(first)
	if err != nil || strings.TrimSpace(rest) != "root tmpfs" {
		t.Fatalf("it said %q: %v", line, err)
	}
	return n
}

// A restored container continues with the next number and with its files, several
// times in a row.
func TestGoesOn(t *testing.T) {
	s := newStage(t)
	told := func(name string) func(*engine.Spec) { // a separate directory for each life, mounted at the same place
		dir := filepath.Join(s.dir, "told-"+name)
		if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "name"), []byte(name), 0o644)); err != nil {
			t.Fatal(err)
		}
		return func(spec *engine.Spec) {
			spec.Mounts = append(spec.Mounts, engine.Mount{Type: "bind", Source: dir, Target: "/run/told", ReadOnly: true})
		}
	}
	old := s.create("one", told("one"))
	s.start(old)
	s.said(old, 5)
	for _, name := range []string{"two", "three"} {
		dir := s.save(old)
		lines := s.said(old, 1)
		last := number(t, lines[len(lines)-1])
		next := s.create(name, told(name))
		if err := s.runsc.Stage(next, dir); err != nil {
			t.Fatal(err)
		}
		s.start(next)
		used := s.runsc.Used(next)
		if err := s.runsc.Unstage(next); !used || err != nil {
			t.Errorf("used %v, %v", used, err)
		}
		if n := number(t, s.said(next, 3)[0]); n != last+1 {
			t.Errorf("%d comes after %d", n, last)
		}
		var env bytes.Buffer
		if code, err := s.engine.Exec(s.ctx, next, engine.Exec{Command: []string{"cat", "/proc/gvisor/spec_environ"}, Stdout: &env}); code != 0 || err != nil || !strings.Contains(env.String(), "EPOCH="+name) {
			t.Errorf("exit code %d, %v, %q", code, err, env.String())
		}
		var now bytes.Buffer
		if code, err := s.engine.Exec(s.ctx, next, engine.Exec{Command: []string{"cat", "/run/told/name"}, Stdout: &now}); code != 0 || err != nil || now.String() != name {
			t.Errorf("exit code %d, %v: its output is %q", code, err, now.String())
		}
		if err := s.engine.Remove(s.ctx, old); err != nil {
			t.Error(err)
		}
		old = next
	}
	// Without an image a start is an ordinary start.
	plain := s.create("plain", nil)
	s.start(plain)
	if n := number(t, s.said(plain, 1)[0]); n != 1 {
		t.Errorf("its first number is %d", n)
	}
	if left, err := os.ReadDir(s.runsc.Images); err != nil || len(left) != 0 {
		t.Errorf("%v are left, %v", left, err)
	}
}

// A session that joins another container's network has its own host name, before its first
// instruction.
func TestHostName(t *testing.T) {
	s := newStage(t)
	names := func(name string, env ...string) string {
		holder := s.create("of-"+name, func(spec *engine.Spec) { spec.Runtime = "" })
		s.start(holder)
		id := s.create(name, func(spec *engine.Spec) {
			spec.Hostname, spec.Network, spec.Command = "", "container:"+holder, []string{"hostname"}
			spec.Env = append([]string{`ODD="HOLDFAST_SESSION=odd" "hostname":"odd"`}, env...)
		})
		s.start(id)
		return s.said(id, 0)[0]
	}
	if got := names("session", "HOLDFAST_SESSION=alice-1", "HOLDFAST_EPOCH=1"); got != "alice-1" {
		t.Errorf("a session's host name is %q", got)
	}
	if got := names("other"); got != "of-other" {
		t.Errorf("the host name of a container that is no session is %q", got)
	}
}

// A session may be saved on a network of its own and continue on another container's, and the
// other way round.
func TestGoesOnInAnotherNetwork(t *testing.T) {
	s := newStage(t)
	holder := s.create("holder", func(spec *engine.Spec) { spec.Runtime = "" })
	s.start(holder)
	session := func(name, network string) string {
		return s.create(name, func(spec *engine.Spec) {
			spec.Env = []string{"HOLDFAST_SESSION=alice"}
			if spec.Network = network; network != "" {
				spec.Hostname = ""
			}
		})
	}
	old := session("one", "")
	s.start(old)
	for i, network := range []string{"container:" + holder, ""} {
		lines := s.said(old, 1)
		dir := s.save(old)
		next := session("next-"+strconv.Itoa(i), network)
		if err := s.runsc.Stage(next, dir); err != nil {
			t.Fatal(err)
		}
		s.start(next)
		if n := number(t, s.said(next, 1)[0]); n <= number(t, lines[len(lines)-1]) {
			t.Errorf("on network %q it begins with %d after %s", network, n, lines[len(lines)-1])
		}
		if err := s.runsc.Unstage(next); err != nil {
			t.Error(err)
		}
		old = next
	}
}

// Size predicts the size of an image from what the container has written to memory
// and files.
func TestSize(t *testing.T) {
	s := newStage(t)
	size := func(name, command string) (guess, image int64) {
		id := s.create(name, func(spec *engine.Spec) { spec.Command = []string{"sh", "-c", command + "; echo done; exec sleep 1000"} })
		s.start(id)
		s.said(id, 0)
		guess, err := s.runsc.Size(id, s.init(id))
		if err != nil {
			t.Fatal(err)
		}
		dir := s.save(id)
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			fi, err := e.Info()
			if err != nil {
				t.Fatal(err)
			}
			image += fi.Size()
		}
		t.Logf("%s: estimated %d bytes, the image has %d", name, guess, image)
		return guess, image
	}
	small, smallImage := size("small", ":")
	big, bigImage := size("big", "head -c 40000000 /dev/urandom > /root-file; head -c 20000000 /dev/urandom > /tmp/file")
	if grown, real := big-small, bigImage-smallImage; grown < real*9/10 || grown > real*3/2 {
		t.Errorf("with 60 MB more the image has %d bytes more, estimated %d", real, grown)
	}
	if smallImage > small+4<<20 {
		t.Errorf("estimated %d bytes for an image of %d", smallImage, small)
	}
	if _, err := s.runsc.Size(strings.Repeat("a", 64), os.Getpid()); !errors.Is(err, runsc.ErrStranger) {
		t.Errorf("another process: %v", err)
	}
}

// Invalid ids and images are refused, and no program is run for them.
func TestRefuses(t *testing.T) {
	s := newStage(t)
	old := s.create("one", nil)
	s.start(old)
	s.said(old, 2)
	init := s.init(old)
	if err := s.runsc.Checkpoint(s.ctx, strings.Repeat("a", 64), init, t.TempDir()); !errors.Is(err, runsc.ErrStranger) {
		t.Errorf("another container's: %v", err)
	}
	if err := s.runsc.Checkpoint(s.ctx, old, os.Getpid(), t.TempDir()); !errors.Is(err, runsc.ErrStranger) {
		t.Errorf("another process: %v", err)
	}
	dir := s.save(old)
	copied := func(name string, spoil func(dir string)) string {
		to := filepath.Join(s.dir, name)
		if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		spoil(to)
		return to
	}
	for name, c := range map[string]struct {
		change func(*engine.Spec)
		spoil  func(dir string)
	}{
		"command": {func(spec *engine.Spec) { spec.Command = []string{"sleep", "1000"} }, func(string) {}},
		"mounts":  {func(spec *engine.Spec) { spec.Mounts = nil }, func(string) {}},
		"state": {nil, func(dir string) {
			if err := os.Truncate(filepath.Join(dir, "checkpoint.img"), 1000); err != nil {
				t.Fatal(err)
			}
		}},
		"pages": {nil, func(dir string) {
			if err := os.Truncate(filepath.Join(dir, "pages.img"), 4096); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		id := s.create("bad-"+name, c.change)
		if err := s.runsc.Stage(id, copied("bad-"+name, c.spoil)); err != nil {
			t.Fatal(err)
		}
		err := s.engine.Start(s.ctx, id)
		c, inspectErr := s.engine.Inspect(s.ctx, id)
		if err == nil || inspectErr != nil || c.Running() {
			t.Errorf("%s: started %v, running %v, %v", name, err == nil, c.Running(), inspectErr)
		}
		t.Logf("%s: %v", name, err)
		if err := s.runsc.Unstage(id); err != nil {
			t.Error(err)
		}
	}
	torn := copied("torn", func(dir string) { os.Remove(filepath.Join(dir, "pages_meta.img")) })
	if err := s.runsc.Stage(s.create("torn", nil), torn); !errors.Is(err, runsc.ErrTorn) {
		t.Errorf("torn: %v", err)
	}
	if err := s.runsc.Stage("../../etc", dir); err == nil {
		t.Error("a path was taken for a container")
	}
	if err := s.runsc.Sweep(); err != nil {
		t.Error(err)
	}
}

// A start that is repeated is never another kind of start: after a restore that was begun
// the container does not start without its image. The image can be used again for another
// container.
func TestRestoreIsNotRepeatedAsAStart(t *testing.T) {
	dir := t.TempDir()
	r := runsc.Runtime{Program: filepath.Join(dir, "runsc"), Images: filepath.Join(dir, "staged")}
	script, image := filepath.Join(dir, "runtime"), filepath.Join(dir, "image")
	err := errors.Join(os.Mkdir(r.Images, 0o700), os.Mkdir(image, 0o700), os.WriteFile(r.Program, []byte("#!/bin/sh\necho \"$@\"\n"), 0o755), r.Install(script))
	for _, name := range []string{"checkpoint.img", "pages.img", "pages_meta.img"} {
		err = errors.Join(err, os.WriteFile(filepath.Join(image, name), []byte(name), 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	first, second := strings.Repeat("1a", 32), strings.Repeat("2b", 32)
	run := func(args ...string) (string, error) {
		out, err := exec.Command(script, args...).CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	restored := func(id string) {
		t.Helper()
		if out, err := run("--root=/r", "start", id); err != nil || out != "--root=/r restore --detach --image-path="+r.Images+"/"+id+".used "+id {
			t.Errorf("a start with an image is %q, %v", out, err)
		}
	}
	if err := r.Stage(first, image); err != nil || r.Used(first) {
		t.Fatalf("used %v, %v", r.Used(first), err)
	}
	restored(first)
	if out, err := run("--root=/r", "start", first); err == nil || !r.Used(first) {
		t.Errorf("a second start is %q, used %v", out, r.Used(first))
	}
	if out, err := run("--root=/r", "state", first); err != nil || out != "--root=/r state "+first {
		t.Errorf("another command is %q, %v", out, err)
	}
	if err := r.Restage(first, second); err != nil {
		t.Fatal(err)
	}
	restored(second)
	if err := r.Unstage(second); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(r.Images); err != nil || len(left) > 0 {
		t.Errorf("%v are left, %v", left, err)
	}
}
