package session

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"holdfast"
	"holdfast/test/memstore"
	"holdfast/test/poll"
)

// once is a schedule with one time, in Unix nanoseconds, 0 for none. It may change while a node
// runs.
type once struct{ at atomic.Int64 }

func (o *once) Next(after time.Time) time.Time {
	n := o.at.Load()
	if at := time.Unix(0, n); n > 0 && after.Before(at) {
		return at
	}
	return time.Time{}
}

// A session that sleeps wakes at the time that was set, also if another agent of the node has
// set it, and at that of its template.
func TestWakesAtATime(t *testing.T) {
	s, how := memstore.New(1000), Sleep{After: 200 * time.Millisecond}
	n := sleepy(t, setup{store: s, id: "n1"}, how)
	if _, err := n.Start(t.Context(), "a", ""); err != nil {
		t.Fatal(err)
	}
	n.awaitSleep(t, "a")
	late := time.Now().Add(time.Hour)
	for _, at := range []time.Time{{}, time.Now().Add(2 * time.Hour), late} { // each replaces the one before
		if err := n.SetWake(t.Context(), "a", at); err != nil {
			t.Fatal(err)
		}
	}
	if o, err := s.Get(t.Context(), "a"); err != nil || !o.WakeAt.Equal(late) || n.asleep() != 1 {
		t.Errorf("%+v, %v, %d asleep", o, err, n.asleep())
	}
	n.end()

	n = sleepy(t, setup{store: s, id: "n1"}, how)
	if i, err := n.Get("a"); err != nil || !i.Owner.WakeAt.Equal(late) {
		t.Errorf("%+v, %v", i, err)
	}
	woken := func(after time.Time) {
		t.Helper()
		poll.Until(t, "it is awake", func() bool {
			i, err := n.Get("a")
			return err == nil && i.Sleep.WokenAt.After(after) && i.Sleep.WokenBy == holdfast.WokenByTimer && i.Owner.WakeAt.IsZero()
		})
		n.awaitSleep(t, "a")
	}
	n.awaitSleep(t, "a")
	now := time.Now()
	if err := n.SetWake(t.Context(), "a", now); err != nil {
		t.Fatal(err)
	}
	woken(now)
	poll.Until(t, "the time is over", func() bool { o, err := s.Get(t.Context(), "a"); return err == nil && o.WakeAt.IsZero() })
	n.mu.Lock()
	now = time.Now()
	n.sessions["a"].cron = now
	n.mu.Unlock()
	woken(now)
	if i, _ := n.Get("a"); !i.WakeCron.IsZero() {
		t.Errorf("its template has no times: %+v", i)
	}
	if err := n.SetWake(t.Context(), "b", late); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("a session that does not exist: %v", err)
	}
}

// A suspended session resumes at its time: set before, set while it is suspended, and that of
// its template.
func TestResumesAtATime(t *testing.T) {
	kept, cron := web(), &once{}
	kept.SaveMemory, kept.Wake = true, []Schedule{cron}
	n := newNode(t, setup{mover: quickly(), cfg: Config{Templates: []Template{kept}}})
	suspended := func() (s holdfast.Suspended) {
		t.Helper()
		r, err := n.Suspend(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		return r.Suspended
	}
	resumed := func() {
		t.Helper()
		poll.Until(t, "it runs", func() bool {
			i, err := n.Get("a")
			return err == nil && i.Owner.State == holdfast.Ready && i.Sleep != nil && i.Sleep.WokenBy == holdfast.WokenByTimer
		})
	}
	if _, err := n.Start(t.Context(), "a", ""); err != nil {
		t.Fatal(err)
	}
	soon, late := time.Now().Add(100*time.Millisecond), time.Now().Add(time.Hour)
	if err := n.SetWake(t.Context(), "a", late); err != nil {
		t.Fatal(err)
	}
	suspended()
	if _, err := n.Start(t.Context(), "a", ""); err != nil {
		t.Fatal(err)
	}
	if i, err := n.Get("a"); err != nil || i.Sleep.WokenBy != holdfast.WokenByRequest || !i.Owner.WakeAt.Equal(late) {
		t.Errorf("it resumed before its time: woken by %q, wakes at %v, not %v; %v", i.Sleep.WokenBy, i.Owner.WakeAt, late, err)
	}
	if err := n.SetWake(t.Context(), "a", soon); err != nil {
		t.Fatal(err)
	}
	suspended()
	resumed()
	suspended()
	if err := n.SetWake(t.Context(), "a", time.Now()); err != nil {
		t.Fatal(err)
	}
	resumed()
	cron.at.Store(time.Now().Add(100 * time.Millisecond).UnixNano())
	suspended()
	resumed()
}
