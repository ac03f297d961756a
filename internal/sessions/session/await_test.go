package session

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast"
	"holdfast/test/memstore"
	"holdfast/test/poll"
)

// sleepySuspended returns a node whose sessions are suspended when they sleep.
func sleepySuspended(t *testing.T, mv *slow, how Sleep) *node {
	t.Helper()
	kind := web()
	kind.SaveMemory, kind.Sleep = true, how
	return newNode(t, setup{mover: mv, cfg: Config{Templates: []Template{kind}}})
}

func (n *node) awaitSuspended(t *testing.T) {
	t.Helper()
	poll.Until(t, "the session is suspended", func() bool { return len(n.notes(t)) == 1 && len(n.records(t)) == 0 })
}

// A session of a template that saves memory is suspended instead of frozen, although kept
// WebSockets are open. Those that are not kept are a use until they end.
func TestSleepIsASuspension(t *testing.T) {
	mv := quickly()
	n := sleepySuspended(t, mv, Sleep{After: 200 * time.Millisecond, ByData: true})
	first, release, err := n.Acquire(t.Context(), "a", "")
	if err != nil {
		t.Fatal(err)
	}
	first.Activity.ByData(false)
	time.Sleep(300 * time.Millisecond)
	if i, err := n.Get("a"); err != nil || i.Owner.Epoch != first.Epoch || i.Sleep != nil {
		t.Errorf("%+v, %v: it is suspended while another connection is open", i, err)
	}
	if !first.Activity.Control() || !first.Activity.Data(holdfast.WokenByWebSocket) || first.Activity.Suspending() != nil {
		t.Error("it is awake, and does not take data")
	}
	resumed := make(chan holdfast.Route, 1)
	first.Activity.ByData(true)
	n.awaitSuspended(t)
	if first.Activity.Control() || first.Activity.Data(holdfast.WokenByWebSocket) || first.Activity.Suspending() == nil {
		t.Error("it is suspended, and takes data")
	}
	release()
	go func() {
		r, err := n.AwaitResume(context.Background(), "a", first.Epoch)
		if err != nil {
			t.Error(err)
		}
		resumed <- r
	}()
	time.Sleep(100 * time.Millisecond)
	n.serve(t, "b") // another boot
	if len(resumed) != 0 {
		t.Error("it is suspended, and the wait has ended")
	}
	again := n.serve(t, "a")
	if r := <-resumed; r.Epoch != again.Epoch || r.Epoch <= first.Epoch || len(mv.left) != 1 {
		t.Errorf("%+v, %+v; Stage received %+v", r, again, mv.left)
	}
	if _, err := n.Stop(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if r, err := n.AwaitResume(t.Context(), "a", again.Epoch); err != nil || r.Epoch != 0 {
		t.Errorf("it was stopped: %+v, %v", r, err)
	}
}

// A session whose memory cannot be kept stays awake.
func TestStaysAwakeWithoutSpace(t *testing.T) {
	mv := quickly()
	mv.lost["a"] = true
	n := sleepySuspended(t, mv, Sleep{After: 100 * time.Millisecond})
	first := n.serve(t, "a")
	poll.Until(t, "its sleep has failed", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return !n.sessions["a"].sleeper.notBefore.IsZero()
	})
	if i, err := n.Get("a"); err != nil || i.Owner.Epoch != first.Epoch || i.Owner.State != holdfast.Ready {
		t.Errorf("%+v, %v", i, err)
	}
}

// Data keeps the session awake, or is refused because it is being suspended. None is accepted
// after the decision.
func TestDataOrSuspension(t *testing.T) {
	n := sleepySuspended(t, quickly(), Sleep{After: 50 * time.Millisecond, ByData: true})
	for range 10 {
		r, release, err := n.Acquire(t.Context(), "a", "")
		if err != nil {
			t.Fatal(err)
		}
		r.Activity.ByData(true)
		var accepted atomic.Int64 // time of the last data that was accepted
		var senders sync.WaitGroup
		for range 4 {
			senders.Go(func() {
				// Senders that no longer send at the same times would keep the session awake.
				for n := 0; n < 5 && r.Activity.Data(holdfast.WokenByWebSocket); n++ {
					accepted.Store(time.Now().UnixNano())
					time.Sleep(51 * time.Millisecond)
				}
			})
		}
		poll.Until(t, "it is being suspended", func() bool { return r.Activity.Suspending() != nil })
		senders.Wait()
		if age := time.Since(time.Unix(0, accepted.Load())); accepted.Load() > 0 && age < 50*time.Millisecond {
			t.Errorf("data was accepted %v before the suspension", age)
		}
		release()
		n.awaitSuspended(t)
	}
}

// The next agent knows nothing of the waits of the last one, and its own wait ends with a boot.
func TestAwaitResumeOfTheNextAgent(t *testing.T) {
	mv := quickly()
	s := setup{mover: mv, store: memstore.New(1000)}
	kind := web()
	kind.SaveMemory = true
	s.cfg.Templates = []Template{kind}
	n := newNode(t, s)
	first := n.serve(t, "a")
	if _, err := n.Suspend(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	n.end()
	next := newNode(t, s)
	resumed := make(chan holdfast.Route, 1)
	go func() {
		r, _ := next.AwaitResume(context.Background(), "a", first.Epoch)
		resumed <- r
	}()
	time.Sleep(50 * time.Millisecond)
	if again := next.serve(t, "a"); (<-resumed).Epoch != again.Epoch {
		t.Error("the wait has ended without the session")
	}
}
