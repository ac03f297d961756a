package session

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
	"holdfast/test/memstore"
	"holdfast/test/poll"
)

// suspendable returns a node with a second template that can be suspended.
func suspendable(t *testing.T, mv *slow, idle time.Duration) *node {
	t.Helper()
	kept := web()
	kept.Name, kept.SaveMemory, kept.SuspendIdle = "kept", true, idle > 0
	return newNode(t, setup{mover: mv, cfg: Config{Templates: []Template{web(), kept}, IdleStop: idle}})
}

// quickly returns a mover that saves without delay.
func quickly() *slow {
	mv := &slow{end: make(chan struct{}), fails: map[holdfast.SessionKey]bool{}, lost: map[holdfast.SessionKey]bool{}}
	close(mv.end)
	return mv
}

func (n *node) notes(t *testing.T) []store.Note {
	t.Helper()
	list, err := n.store.ListNotes(context.Background(), store.SuspendedNotes)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// A suspended session has no owner. Its next claim, of any template, receives the
// suspend note. The claim after that does not.
func TestSuspendLeavesItToTheNextClaim(t *testing.T) {
	mv := quickly()
	n := suspendable(t, mv, 0)
	first, err := n.Start(t.Context(), "a", "kept")
	if err != nil {
		t.Fatal(err)
	}
	r, err := n.Suspend(t.Context(), "a")
	if err != nil || r.Epoch != first.Owner.Epoch || r.Bytes != 7 || r.Took <= 0 || len(r.Left) != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	if len(n.records(t)) != 0 || len(n.notes(t)) != 1 {
		t.Errorf("records %v, notes %v", n.records(t), n.notes(t))
	}
	again := n.serve(t, "a") // the request names no template
	i, err := n.Get("a")
	if err != nil || i.Owner.Template != "kept" || i.Owner.Memory != "lost: it is a test's" || again.Epoch <= first.Owner.Epoch {
		t.Errorf("%+v, %v", i, err)
	}
	if len(mv.left) != 1 || mv.left[0].Epoch != first.Owner.Epoch || len(n.notes(t)) != 0 {
		t.Errorf("Stage received %+v; notes %v", mv.left, n.notes(t))
	}
	if o, err := n.store.Get(t.Context(), "a"); err != nil || o.Template != "kept" || o.Memory != i.Owner.Memory {
		t.Errorf("the record: %+v, %v", o, err)
	}
	if _, err := n.Stop(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	n.serve(t, "a")
	if i, err := n.Get("a"); err != nil || i.Owner.Memory != "" || len(mv.left) != 1 {
		t.Errorf("a later epoch: %+v, %v", i, err)
	}

	// A request that names another template does not restore the memory.
	if _, err := n.Stop(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Start(t.Context(), "a", "kept"); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Suspend(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	other, err := n.Start(t.Context(), "a", "web")
	if err != nil || other.Owner.Template != "web" || other.Owner.Memory != "lost: the image was of template kept" || len(n.notes(t)) != 0 || len(mv.left) != 1 {
		t.Errorf("%+v, %v", other, err)
	}
}

// A boot that ends before it has taken the image leaves the session suspended, and the next one
// gets the image. A session that is stopped meanwhile is not wanted any more.
func TestBootThatEndsBeforeItTakesTheImage(t *testing.T) {
	for name, c := range map[string]struct {
		pulls bool // the boot waits for an image of the engine
		spoil func(t *testing.T, n *node, fake *fakeEngine)
		mend  func(n *node, fake *fakeEngine)
		stays bool
	}{
		"no image": {false,
			func(_ *testing.T, _ *node, fake *fakeEngine) { fake.noPull = errors.New("the registry is away") },
			func(_ *node, fake *fakeEngine) { fake.noPull = nil }, true},
		"the runtime fails": {false,
			func(_ *testing.T, n *node, _ *fakeEngine) {
				n.deps.Runtime = func(name string) error {
					if name == "" {
						return nil
					}
					return errors.New("it does not start")
				}
			},
			func(n *node, _ *fakeEngine) { n.deps.Runtime = func(string) error { return nil } }, true},
		"a drain": {true,
			func(_ *testing.T, n *node, _ *fakeEngine) { n.StopClaiming() },
			func(n *node, _ *fakeEngine) { n.Claim() }, true},
		"a stop": {true,
			func(t *testing.T, n *node, _ *fakeEngine) {
				if _, err := n.Stop(t.Context(), "a"); err != nil {
					t.Error(err)
				}
			},
			func(*node, *fakeEngine) {}, false},
	} {
		t.Run(name, func(t *testing.T) {
			fake := newFakeEngine(t)
			t.Cleanup(fake.close)
			plain, kept := anywhere(t), anywhere(t)
			kept.Name, kept.SaveMemory, kept.Runtime = "kept", true, "other"
			mv := quickly()
			n := newNode(t, setup{engine: fake, mover: mv, cfg: Config{Templates: []Template{plain, kept}}})
			first, err := n.Start(t.Context(), "a", "kept")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := n.Suspend(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			change := func(f func()) {
				fake.mu.Lock()
				defer fake.mu.Unlock()
				f()
			}
			change(func() {
				fake.missing = map[string]bool{kept.Image: true}
				fake.pulled = nil
				if c.pulls {
					fake.pulling = make(chan struct{})
				}
			})
			failed := make(chan error, 1)
			begin := func() {
				_, err := n.Start(t.Context(), "a", "")
				failed <- err
			}
			if c.pulls {
				go begin()
				poll.Until(t, "the boot pulls", func() (pulls bool) {
					change(func() { pulls = len(fake.pulled) > 0 })
					return pulls
				})
				c.spoil(t, n, fake)
			} else {
				change(func() { c.spoil(t, n, fake) })
				begin()
			}
			if err := <-failed; err == nil {
				t.Fatal("the boot does not fail")
			}
			poll.Until(t, "the claim is released", func() bool { return len(n.records(t)) == 0 })
			if stays := len(n.notes(t)) == 1; stays != c.stays {
				t.Errorf("suspended: %v, want %v", stays, c.stays)
			}
			change(func() {
				c.mend(n, fake)
				delete(fake.missing, kept.Image)
			})
			poll.Until(t, "the session starts", func() bool { _, err := n.Start(t.Context(), "a", ""); return err == nil })
			if taken := len(mv.left) == 1 && mv.left[0].Epoch == first.Owner.Epoch && mv.left[0].After > first.Owner.Epoch; taken != c.stays {
				t.Errorf("Stage received %+v", mv.left)
			}
		})
	}
}

// If an agent is killed before it has taken the image, its next agent leaves the session suspended.
// A note that cannot be read is lost, and the session boots fresh.
func TestKilledBeforeItTakesTheImage(t *testing.T) {
	for name, torn := range map[string]bool{"whole": false, "torn": true} {
		t.Run(name, func(t *testing.T) {
			fake := newFakeEngine(t)
			t.Cleanup(fake.close)
			kept := anywhere(t)
			kept.SaveMemory = true
			mv, dir := quickly(), filepath.Join(t.TempDir(), "resuming")
			s := setup{engine: fake, mover: mv, store: memstore.New(1000), cfg: Config{Templates: []Template{kept}, Resuming: dir}}
			n := newNode(t, s)
			first := n.serve(t, "a")
			if _, err := n.Suspend(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			fake.set(func() {
				fake.missing, fake.pulled = map[string]bool{kept.Image: true}, nil
				fake.pulling = make(chan struct{})
			})
			go n.Start(t.Context(), "a", "")
			poll.Until(t, "the boot pulls", func() (pulls bool) {
				fake.set(func() { pulls = len(fake.pulled) > 0 })
				return pulls
			})
			n.store.SetDown(true) // an agent that is killed writes nothing
			n.end()
			n.store.SetDown(false)
			left := n.records(t)
			if len(left) != 1 || len(n.notes(t)) != 0 {
				t.Fatalf("records %v, notes %v", left, n.notes(t))
			}
			if torn {
				if err := os.Truncate(filepath.Join(dir, epochName(left[0])), 10); err != nil {
					t.Fatal(err)
				}
			}
			fake.set(func() { fake.missing, fake.pulling = nil, nil })
			next := newNode(t, s)
			if got := len(next.notes(t)) == 1; got == torn || len(next.records(t)) != 0 {
				t.Errorf("records %v, notes %v", next.records(t), next.notes(t))
			}
			if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the notes of the first agent: %v", err)
			}
			next.serve(t, "a")
			if taken := len(mv.left) == 1 && mv.left[0].Epoch == first.Epoch && mv.left[0].After == left[0].Epoch; taken == torn {
				t.Errorf("Stage received %+v", mv.left)
			}
			if files, err := os.ReadDir(dir); len(files) != 0 || err != nil && !torn {
				t.Errorf("%v, %v", files, err)
			}
		})
	}
}

// A session boots from the template that an experiment assigns. A suspended one keeps its
// memory, and with it its template, until it boots afresh.
func TestAssignedTemplate(t *testing.T) {
	fake := newFakeEngine(t)
	t.Cleanup(fake.close)
	plain, next := anywhere(t), anywhere(t)
	plain.SaveMemory, next.SaveMemory, next.Name = true, true, "next"
	var treated atomic.Bool
	n := newNode(t, setup{engine: fake, mover: quickly(), cfg: Config{Templates: []Template{plain, next}},
		assign: func(holdfast.SessionKey, string) string {
			if treated.Load() {
				return next.Name
			}
			return plain.Name
		}})
	start := func(requested, want, memory string) {
		t.Helper()
		i, err := n.Start(t.Context(), "a", requested)
		if err != nil || i.Owner.Template != want || i.Owner.Memory != memory {
			t.Errorf("from template %q: %+v, %v, want template %s and memory %q", requested, i.Owner, err, want, memory)
		}
	}
	stop := func() {
		t.Helper()
		if _, err := n.Stop(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
	}
	start("", plain.Name, "")
	if _, err := n.Suspend(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	treated.Store(true)
	start(plain.Name, plain.Name, "lost: it is a test's") // by the mover, not for another template
	stop()
	start(plain.Name, next.Name, "")
	stop()
	treated.Store(false)
	start(next.Name, plain.Name, "")
}

func TestSuspendThatCannotBe(t *testing.T) {
	mv := quickly()
	mv.fails["torn"], mv.lost["full"] = true, true
	n := suspendable(t, mv, 0)
	for key, template := range map[holdfast.SessionKey]string{"plain": "web", "full": "kept", "torn": "kept"} {
		if _, err := n.Start(t.Context(), key, template); err != nil {
			t.Fatal(err)
		}
	}
	for key, says := range map[holdfast.SessionKey]string{"plain": "does not say handover: memory", "full": "no room"} {
		if _, err := n.Suspend(t.Context(), key); !errors.Is(err, holdfast.ErrNoMemory) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", key, err)
		}
		if i, err := n.Get(key); err != nil || i.Owner.State != holdfast.Ready {
			t.Errorf("%s does not continue: %+v, %v", key, i, err)
		}
	}
	if _, err := n.Suspend(t.Context(), "torn"); err == nil || errors.Is(err, holdfast.ErrNoMemory) || !strings.Contains(err.Error(), "ended without its memory") {
		t.Errorf("torn: %v", err)
	}
	// The watch may report the record's last change after its release. Until the record is looked
	// up, the key then has an entry once more.
	poll.Until(t, "torn has no entry", func() bool { _, err := n.Get("torn"); return errors.Is(err, holdfast.ErrNotFound) })
	if notes := n.notes(t); len(notes) != 0 {
		t.Errorf("torn: notes %v", notes)
	}
	if _, err := n.Suspend(t.Context(), "unknown"); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("no owner: %v", err)
	}
}

// Space is reserved while a session is suspended, and is released for the next one.
func TestSuspendReservesRoom(t *testing.T) {
	mv := &slow{end: make(chan struct{}), room: 1}
	n := suspendable(t, mv, 0)
	for _, key := range []holdfast.SessionKey{"a", "b"} {
		if _, err := n.Start(t.Context(), key, "kept"); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error, 1)
	go func() { _, err := n.Suspend(t.Context(), "a"); done <- err }()
	poll.Until(t, "a leaves", func() bool {
		o, err := n.store.Get(context.Background(), "a")
		return err == nil && o.State == holdfast.Leaving
	})
	if _, err := n.Suspend(t.Context(), "b"); !errors.Is(err, holdfast.ErrNoMemory) {
		t.Errorf("with space for one image: %v", err)
	}
	if i, err := n.Get("b"); err != nil || i.Owner.State != holdfast.Ready {
		t.Errorf("the session does not continue: %+v, %v", i, err)
	}
	close(mv.end)
	if err := <-done; err != nil {
		t.Error(err)
	}
	poll.Until(t, "the space is released", func() bool {
		mv.mu.Lock()
		defer mv.mu.Unlock()
		return mv.reserved == 0
	})
	if _, err := n.Suspend(t.Context(), "b"); err != nil {
		t.Error(err)
	}
}

// A claim by an agent without support for suspended sessions leaves the note in place,
// and the session runs without its memory. The note is never used after that.
func TestSuspendedAndClaimedByAnOldAgent(t *testing.T) {
	mv := quickly()
	n := suspendable(t, mv, 0)
	if _, err := n.Start(t.Context(), "a", "kept"); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Suspend(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	lease, _, err := n.store.Grant(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	old, err := n.store.Claim(t.Context(), holdfast.Owner{Key: "a", Node: "old", State: holdfast.Claimed}, lease)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.store.PutNote(t.Context(), store.SuspendedNotes+"a", []byte(old.SuspendNote), 0); err != nil { // as if no claim had removed it
		t.Fatal(err)
	}
	if _, err := n.store.Release(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	n.serve(t, "a")
	if i, err := n.Get("a"); err != nil || !strings.Contains(i.Owner.Memory, "it was running after") || len(mv.left) != 0 || len(n.notes(t)) != 0 {
		t.Errorf("%+v, %v; Stage received %+v", i, err, mv.left)
	}
}

// While the store is unavailable, a saved session stays owned. The next claim finds the
// suspend note that is written afterwards.
func TestSuspendWithoutAStore(t *testing.T) {
	mv := &slow{end: make(chan struct{})}
	n := suspendable(t, mv, 0)
	if _, err := n.Start(t.Context(), "a", "kept"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { _, err := n.Suspend(t.Context(), "a"); done <- err }()
	poll.Until(t, "the session leaves", func() bool {
		o, err := n.store.Get(context.Background(), "a")
		return err == nil && o.State == holdfast.Leaving && o.Memory == holdfast.Saving
	})
	n.store.SetDown(true)
	close(mv.end)
	poll.Until(t, "its container is gone", func() bool {
		i, err := n.Get("a")
		return err == nil && i.Owner.State == holdfast.Leaving && !n.running(t, i.Owner.ContainerID)
	})
	n.store.SetDown(false)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if len(n.records(t)) != 0 || len(n.notes(t)) != 1 {
		t.Errorf("records %v, notes %v", n.records(t), n.notes(t))
	}
}

func (n *node) running(t *testing.T, id string) bool {
	t.Helper()
	c, err := n.engine.Inspect(context.Background(), id)
	return err == nil && c.Running()
}

// If the lease is lost meanwhile, no note is written, because another node may have
// owned the session.
func TestSuspendWithoutALease(t *testing.T) {
	mv := &slow{end: make(chan struct{})}
	n := suspendable(t, mv, 0)
	first, err := n.Start(t.Context(), "a", "kept")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { _, err := n.Suspend(t.Context(), "a"); done <- err }()
	poll.Until(t, "the session leaves", func() bool {
		o, err := n.store.Get(context.Background(), "a")
		return err == nil && o.State == holdfast.Leaving
	})
	if err := n.store.Revoke(t.Context(), store.LeaseID(n.lease.Load())); err != nil {
		t.Fatal(err)
	}
	n.LeaseLost(t.Context())
	poll.Until(t, "the engine sees its container dead", func() bool { return !n.running(t, first.Owner.ContainerID) })
	lease, _, err := n.store.Grant(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	other, err := n.store.Claim(t.Context(), holdfast.Owner{Key: "a", Node: "other", State: holdfast.Claimed}, lease)
	if err != nil || other.SuspendNote != "" {
		t.Errorf("%+v, %v", other, err)
	}
	close(mv.end)
	if err := <-done; !errors.Is(err, holdfast.ErrStore) {
		t.Errorf("Suspend returned %v", err)
	}
	if len(n.notes(t)) != 0 {
		t.Errorf("the notes are %v although another node owns the session", n.notes(t))
	}
	if now, err := n.store.Get(t.Context(), "a"); err != nil || now.Epoch != other.Epoch {
		t.Errorf("the record of the other node: %+v, %v", now, err)
	}
}

// An idle session is suspended if its template says so, else it is stopped.
func TestIdleIsSuspended(t *testing.T) {
	mv := quickly()
	mv.lost["full"] = true
	n := suspendable(t, mv, 100*time.Millisecond)
	for key, template := range map[holdfast.SessionKey]string{"plain": "web", "full": "kept", "a": "kept", "b": "kept", "c": "kept"} {
		if _, err := n.Start(t.Context(), key, template); err != nil {
			t.Fatal(err)
		}
	}
	n.empty(t)
	var names []string
	for _, note := range n.notes(t) {
		names = append(names, strings.TrimPrefix(note.Name, store.SuspendedNotes))
	}
	if got := strings.Join(names, " "); got != "a b c" {
		t.Errorf("%q are suspended", got)
	}
}
