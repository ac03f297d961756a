package session

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"holdfast"
	"holdfast/internal/sessions/kill"
	"holdfast/test/memstore"
)

// recorder is a deadman that records its calls in the fake engine's order.
type recorder struct {
	mu          sync.Mutex
	fake        *fakeEngine
	refuse      error
	held        map[string]bool // expected or held, and not forgotten
	unconfirmed []string        // of an earlier agent
}

func (r *recorder) note(what, id string, holds bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fake.mu.Lock()
	defer r.fake.mu.Unlock()
	r.fake.orders = append(r.fake.orders, what+" "+id)
	if c := r.fake.find(id); what == "forget" && c != nil && c.State == "running" && !c.dead() {
		r.fake.problems = append(r.fake.problems, id+" is forgotten while it runs")
	}
	if r.held == nil {
		r.held = map[string]bool{}
	}
	if r.held[id] = true; !holds {
		delete(r.held, id)
	}
}

func (r *recorder) Expect(id string) error {
	if r.refuse != nil {
		return r.refuse
	}
	r.note("expect", id, true)
	return nil
}

func (r *recorder) Hold(t *kill.Target) error {
	r.note("hold", t.ID, true)
	return errors.New("not now") // has no effect on the session
}

func (r *recorder) Unconfirmed() []string { return r.unconfirmed }

func (r *recorder) Forget(ids ...string) {
	for _, id := range ids {
		r.note("forget", id, false)
	}
}

func TestDeadmanIsToldOfEveryContainerInTime(t *testing.T) {
	fake := newFakeEngine(t)
	t.Cleanup(fake.close)
	deadman := &recorder{fake: fake}
	s := memstore.New(1000)
	set := setup{id: "n1", store: s, engine: fake, dead: deadman, cfg: Config{Templates: []Template{anywhere(t)}}}
	n := newNode(t, set)
	id := n.serve(t, "alice").ContainerID
	n.end()
	n = newNode(t, set) // an agent that adopts the session
	if _, err := n.Stop(t.Context(), "alice"); err != nil {
		t.Fatal(err)
	}
	orders := fake.done("")
	if want := []string{"expect " + id, "start " + id, "hold " + id, "hold " + id, "forget " + id}; !slices.Equal(orders, want) {
		t.Errorf("got %q, want %q", orders, want)
	}

	fake.set(func() { fake.lose["start"] = true }) // the container runs, and its boot fails
	if _, _, err := n.Acquire(t.Context(), "bob", ""); err == nil {
		t.Error("a lost start: no error")
	}
	n.empty(t)
	deadman.mu.Lock()
	defer deadman.mu.Unlock()
	if len(deadman.held) > 0 {
		t.Errorf("Forget was not called for %v", deadman.held)
	}
}

func TestNothingStartsThatTheDeadmanDoesNotKnow(t *testing.T) {
	fake := newFakeEngine(t)
	t.Cleanup(fake.close)
	n := newNode(t, setup{engine: fake, dead: &recorder{fake: fake, refuse: errors.New("it is gone")}, cfg: Config{Templates: []Template{anywhere(t)}}})
	_, _, err := n.Acquire(t.Context(), "alice", "")
	var boot *holdfast.BootError
	if !errors.As(err, &boot) || boot.Phase != "start" {
		t.Errorf("got %v", err)
	}
	n.empty(t)
	if starts := fake.done("start"); len(starts) > 0 {
		t.Errorf("orders %q", starts)
	}
}
