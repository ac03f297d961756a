package session

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/sessions/move"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// slow is a mover that finishes a save on command, so that a test can act meanwhile.
// test/agent has tests with real images.
type slow struct {
	end   chan struct{} // closed when Save may end
	fails map[holdfast.SessionKey]bool
	lost  map[holdfast.SessionKey]bool // sessions that Plan does not save
	saved map[holdfast.SessionKey]bool // sessions with a complete image of an agent that ended

	room int    // limit of concurrent suspends; 0 means none
	keep string // how Keep ends

	mu       sync.Mutex
	reserved int
	until    time.Time
	chosen   []move.Departing
	left     []holdfast.Suspended // arguments of Stage
}

func (s *slow) Plan(until time.Time, all []move.Departing) move.Plan {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until, s.chosen = until, all
	c := move.Plan{Lanes: 2, Takes: time.Second}
	for _, l := range all {
		if s.lost[l.Owner.Key] {
			c.Lost = append(c.Lost, holdfast.LostMemory{Key: l.Owner.Key, Epoch: l.Owner.Epoch, Reason: "no room"})
			continue
		}
		c.Save = append(c.Save, l)
	}
	return c
}

func (s *slow) Save(ctx context.Context, l move.Departing) (int64, error) {
	select {
	case <-s.end:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	if s.fails[l.Owner.Key] {
		return 0, errors.New("torn")
	}
	return 7, nil
}

func (s *slow) Reserve(l move.Departing) (move.Departing, func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost[l.Owner.Key] || s.room > 0 && s.reserved == s.room {
		return l, nil, errors.New("no room")
	}
	s.reserved++
	l.Bytes = 7
	return l, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.reserved--
	}, nil
}

func (s *slow) Suspend(ctx context.Context, l move.Departing) (holdfast.Suspended, error) {
	if l.Bytes != 7 {
		return holdfast.Suspended{}, errors.New("nothing is reserved for it")
	}
	if _, err := s.Save(ctx, l); err != nil {
		return holdfast.Suspended{}, err
	}
	return holdfast.Suspended{Key: l.Owner.Key, Epoch: l.Owner.Epoch, Node: l.Owner.Node, Template: l.Owner.Template, Bytes: 7}, nil
}

func (s *slow) Copy(_ context.Context, l move.Departing, c holdfast.MemorySnapshot) (holdfast.MemorySnapshot, error) {
	c.Key, c.Epoch = l.Owner.Key, l.Owner.Epoch
	return c, nil
}

func (s *slow) DropCopy(holdfast.SessionKey) {}

func (s *slow) Keep(_ context.Context, _ holdfast.Owner, left holdfast.Suspended) (holdfast.Suspended, bool, error) {
	switch s.keep {
	case "refused":
		return left, false, errors.New("refused")
	case "torn":
		return left, true, errors.New("torn")
	}
	left.Node = "node-1"
	return left, true, nil
}

// Stage never has an image.
func (s *slow) Stage(_ context.Context, _ *holdfast.Owner, left *holdfast.Suspended, _ string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if left == nil {
		return false, nil
	}
	s.left = append(s.left, *left)
	return false, errors.New("it is a test's")
}

func (s *slow) Saved(_ context.Context, o holdfast.Owner) (holdfast.Suspended, bool) {
	return holdfast.Suspended{Key: o.Key, Epoch: o.Epoch, Node: o.Node, Template: o.Template, Bytes: 7}, s.saved[o.Key]
}

func (s *slow) Used(string) bool { return false }

func (s *slow) Restage(string, string) error                   { return nil }
func (s *slow) Received(holdfast.SessionKey) bool              { return false }
func (s *slow) RestoreHeld(context.Context, string, int) error { return nil }

func (s *slow) Unstage(string, bool) {}

// Saved sessions are handed over one by one. Sessions that are not saved are released
// before the first of them.
func TestSavesBesideTheOthers(t *testing.T) {
	mv := &slow{end: make(chan struct{}), fails: map[holdfast.SessionKey]bool{"c": true}, lost: map[holdfast.SessionKey]bool{"d": true}}
	kept := web()
	kept.Name, kept.SaveMemory, kept.Priority = "kept", true, 3
	n := newNode(t, setup{mover: mv, cfg: Config{Templates: []Template{web(), kept}}})
	for key, template := range map[holdfast.SessionKey]string{"a": "kept", "b": "kept", "c": "kept", "d": "kept", "e": "web"} {
		if _, err := n.Start(t.Context(), key, template); err != nil {
			t.Fatal(err)
		}
	}
	_, hangUp, err := n.Acquire(t.Context(), "b", "")
	if err != nil {
		t.Fatal(err)
	}
	defer hangUp()
	b := n.MarkTerminating()
	until := time.Now().Add(time.Minute)
	s := b.Keep(until)
	if s.Count() != 3 || len(b.Targets()) != 2 {
		t.Fatalf("%d are saved, %d killed", s.Count(), len(b.Targets()))
	}
	if len(mv.chosen) != 4 || !mv.until.Equal(until) {
		t.Errorf("%d candidates until %v", len(mv.chosen), mv.until)
	}
	for _, l := range mv.chosen {
		if l.Priority != 3 || l.Connected != (l.Owner.Key == "b") || l.Target == nil {
			t.Errorf("%+v", l)
		}
	}
	done := make(chan holdfast.SaveReport, 1)
	go func() { done <- s.Run(t.Context()) }()
	b.Killed(n.deps.Killer.Kill(t.Context(), b.Targets()))
	if got, err := b.Release(t.Context()); got != 2 || err != nil {
		t.Errorf("released %d, %v", got, err)
	}
	if left := len(n.records(t)); left != 3 {
		t.Errorf("%d records during the saves", left)
	}
	// The next agent would learn of the two that are being saved, and could take them over.
	poll.Until(t, "the records say so", func() bool {
		saving := 0
		for _, o := range n.records(t) {
			if o.Memory == holdfast.Saving && o.State == holdfast.Ready {
				saving++
			}
		}
		return saving == 2
	})
	close(mv.end)
	r := <-done
	if r.Memory.Saved != 2 || r.Memory.Bytes != 14 || r.Released != 3 || len(r.Kill.Dead) != 3 || len(r.Kill.Left) != 0 {
		t.Errorf("%+v", r)
	}
	why := map[holdfast.SessionKey]string{}
	for _, l := range r.Memory.Lost {
		why[l.Key] = l.Reason
	}
	if len(why) != 2 || why["c"] != "torn" || why["d"] != "no room" {
		t.Errorf("lost: %v", why)
	}
	if got, err := b.Release(t.Context()); got != 0 || err != nil {
		t.Errorf("released %d more, %v", got, err)
	}
	if count, left := b.Settle(t.Context()); count != 0 || len(left) != 0 {
		t.Errorf("%d, %v", count, left)
	}
	n.empty(t)
	if notes := n.notes(t); len(notes) != 0 {
		t.Errorf("the notes are %v", notes)
	}
}

// A container whose memory can be saved has an identity file while it runs.
func TestToldWhoItIs(t *testing.T) {
	told := filepath.Join(labtest.Engine(t).Scratch(), t.Name())
	kept := web()
	kept.SaveMemory, kept.Image, kept.Ready.HTTPPath = true, labtest.Busybox, ""
	kept.Command = []string{"busybox", "httpd", "-f", "-p", "8080"}
	n := newNode(t, setup{mover: &slow{}, cfg: Config{Templates: []Template{kept}, IdentityRoot: told}})
	r := n.serve(t, "a")
	var text bytes.Buffer
	_, err := n.engine.Exec(t.Context(), r.ContainerID, engine.Exec{Command: []string{"cat", IdentityDir + "/" + IdentityFile}, Stdout: &text})
	var id holdfast.Identity
	if err == nil {
		err = json.Unmarshal(text.Bytes(), &id)
	}
	if err != nil || id.Session != "a" || id.Epoch != r.Epoch {
		t.Errorf("%q, %v", text.String(), err)
	}
	if fi, err := os.Stat(told); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", fi, err)
	}
	if _, err := n.Stop(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	n.empty(t)
	if left, err := os.ReadDir(told); err != nil || len(left) != 0 {
		t.Errorf("%v are left, %v", left, err)
	}
}

// While the store is unavailable, saved sessions stay owned. Sessions that are not saved
// in time are killed.
func TestSavesWithoutAStoreOrTime(t *testing.T) {
	mv := &slow{end: make(chan struct{})}
	kept := web()
	kept.SaveMemory = true
	n := newNode(t, setup{mover: mv, cfg: Config{Templates: []Template{kept}}})
	n.serve(t, "a")
	b := n.MarkTerminating()
	s := b.Keep(time.Now())
	n.store.SetDown(true)
	r := s.Run(t.Context())
	if r.Memory.Saved != 0 || len(r.Memory.Lost) != 1 || r.Memory.Lost[0].Reason != "there was no time for it" || len(r.Kill.Dead) != 1 || r.Released != 0 {
		t.Errorf("%+v", r)
	}
	n.store.SetDown(false)
	if got, err := b.Release(t.Context()); got != 1 || err != nil {
		t.Errorf("released %d, %v", got, err)
	}
	n.empty(t)
}
