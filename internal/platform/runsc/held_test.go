package runsc_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/runsc"
)

// held creates a container, and starts its sandbox only.
func (s *stage) held(name string, change func(*engine.Spec)) string {
	s.t.Helper()
	id := s.create(name, change)
	if err := s.runsc.Hold(id); err != nil {
		s.t.Fatal(err)
	}
	s.start(id)
	return id
}

// A container that is held runs nothing until it is restored. Then it continues where the other
// one was saved, once, and can be saved again.
func TestHeldContainerIsRestored(t *testing.T) {
	s := newStage(t)
	old := s.create("one", func(spec *engine.Spec) { spec.Env = []string{"HOLDFAST_SESSION=alice"} })
	s.start(old)
	s.said(old, 5)
	for round := range 3 {
		next := s.held("next-"+strconv.Itoa(round), func(spec *engine.Spec) { spec.Env = []string{"HOLDFAST_WARM=x"} })
		dir := s.save(old)
		lines := s.said(old, 1)
		last := number(t, lines[len(lines)-1])
		if err := s.runsc.Stage(next, dir); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		if err := s.runsc.RestoreHeld(s.ctx, next, s.init(next)); err != nil {
			t.Fatal(err)
		}
		t.Log("restored in", time.Since(begun))
		if !s.runsc.Used(next) {
			t.Error("its image is not used")
		}
		if n := number(t, s.said(next, 3)[0]); n != last+1 {
			t.Errorf("%d comes after %d", n, last)
		}
		if err := s.runsc.RestoreHeld(s.ctx, next, s.init(next)); err == nil {
			t.Error("it was restored twice")
		}
		if err := s.runsc.Unstage(next); err != nil {
			t.Error(err)
		}
		if code, err := s.engine.Exec(s.ctx, next, engine.Exec{Command: []string{"true"}}); code != 0 || err != nil {
			t.Errorf("a command in it: %d, %v", code, err)
		}
		if err := s.engine.Remove(s.ctx, old); err != nil {
			t.Error(err)
		}
		old = next
	}
	if left, err := os.ReadDir(s.runsc.Images); err != nil || len(left) != 0 {
		t.Errorf("%v are left, %v", left, err)
	}
}

// If a restore fails because the sandbox has died, another container gets the image.
func TestHeldContainerThatDies(t *testing.T) {
	s := newStage(t)
	old := s.create("one", nil)
	s.start(old)
	s.said(old, 5)
	dead := s.held("dead", nil)
	init := s.init(dead)
	dir := s.save(old)
	if err := s.runsc.Stage(dead, dir); err != nil {
		t.Fatal(err)
	}
	if err := s.engine.Remove(s.ctx, dead); err != nil {
		t.Fatal(err)
	}
	if err := s.runsc.RestoreHeld(s.ctx, dead, init); err == nil {
		t.Fatal("a dead container was restored")
	}
	next := s.create("next", nil)
	if err := s.runsc.Restage(dead, next); err != nil {
		t.Fatal(err)
	}
	s.start(next)
	if n := number(t, s.said(next, 1)[0]); n < 6 {
		t.Errorf("it begins with %d", n)
	}
	if err := s.runsc.Unstage(next); err != nil {
		t.Error(err)
	}
}

func TestHoldRefuses(t *testing.T) {
	r := runsc.Runtime{Program: "/bin/false", Images: t.TempDir()}
	if err := r.Hold("../x"); err == nil {
		t.Error("a path is an id")
	}
	id := strings.Repeat("a", 64)
	if err := r.Hold(id); err != nil {
		t.Error(err)
	}
	if err := r.RestoreHeld(t.Context(), id, os.Getpid()); err == nil {
		t.Error("this process is a sandbox")
	}
	if err := r.Unstage(id); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(r.Images); err != nil || len(left) != 0 {
		t.Errorf("%v are left, %v", left, err)
	}
	// The script itself: it starts no container that is held.
	script := filepath.Join(t.TempDir(), "runtime")
	if err := r.Install(script); err != nil {
		t.Fatal(err)
	}
	if err := r.Hold(id); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(script, "--root=/x", "start", id).CombinedOutput(); err != nil {
		t.Errorf("%v, %s", err, out)
	}
	if err := exec.Command(script, "--root=/x", "kill", id).Run(); err == nil {
		t.Error("another command did not reach runsc")
	}
}
