package fleet

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
)

// resume is the result of a call of AwaitResume.
type resume struct {
	route holdfast.Route
	err   error
	after time.Duration
}

func (x *node) awaitResume(ctx context.Context, epoch holdfast.Epoch) <-chan resume {
	got, begun := make(chan resume, 1), time.Now()
	go func() {
		r, err := x.AwaitResume(ctx, key, epoch)
		got <- resume{r, err, time.Since(begun)}
	}()
	synctest.Wait()
	return got
}

func (c resume) check(t *testing.T, node holdfast.NodeID, epoch holdfast.Epoch, after time.Duration) {
	t.Helper()
	if c.err != nil || c.route.Node != node || c.route.Epoch != epoch || c.after != after {
		t.Errorf("%+v, want epoch %d on %q after %v", c, epoch, node, after)
	}
}

// A socket waits while its session is suspended, and until a node serves it again.
func TestAwaitResume(t *testing.T) {
	bubble(t, 3, func(t *testing.T, w *world) {
		near, had, next := w.nodes[0], w.nodes[1], w.nodes[2]
		first := had.own(t, key)[0]
		(<-near.awaitResume(t.Context(), first.Epoch)).check(t, "", 0, 0) // it has not left

		must(t, had.host.leave(t.Context(), key))
		got, here := near.awaitResume(t.Context(), first.Epoch), next.awaitResume(t.Context(), first.Epoch)
		given, cancel := context.WithCancel(t.Context())
		gone := near.awaitResume(given, first.Epoch)
		time.Sleep(time.Second)
		must(t, had.host.suspend(t.Context(), key))
		time.Sleep(time.Minute)
		cancel()
		synctest.Wait()
		if len(got)+len(here) > 0 || len(gone) != 1 || (<-gone).err == nil {
			t.Fatal("it is suspended, and the wait has ended, or an ended one goes on")
		}
		next.host.with(func() { next.host.boot = 2 * time.Second })
		again := next.own(t, key)[0]
		(<-got).check(t, next.id, again.Epoch, 63*time.Second)
		r := <-here
		r.check(t, "", again.Epoch, 63*time.Second)
		select {
		case <-r.route.Left:
			t.Error("the session has left")
		default:
		}
		must(t, next.host.leave(t.Context(), key))
		<-r.route.Left

		// It is stopped while it is suspended.
		got = near.awaitResume(t.Context(), again.Epoch)
		must(t, next.host.suspend(t.Context(), key))
		time.Sleep(time.Second)
		must(t, w.store.DropNote(t.Context(), store.Note{Name: store.SuspendedNotes + string(key)}))
		(<-got).check(t, "", 0, suspendedPoll)

		// It leaves, and is not suspended.
		last := had.own(t, key)[0]
		must(t, had.host.leave(t.Context(), key))
		got = near.awaitResume(t.Context(), last.Epoch)
		must(t, had.host.finish(t.Context(), key))
		(<-got).check(t, "", 0, 0)
	})
}

// A node whose watch lags reads the store.
func TestAwaitResumeOfASlowWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.lag = 5 * time.Second
		for range 2 {
			<-w.add().dir.Ready()
		}
		near, had := w.nodes[0], w.nodes[1]
		first := had.own(t, key)[0]
		time.Sleep(time.Minute)
		must(t, had.host.leave(t.Context(), key))
		must(t, had.host.suspend(t.Context(), key))
		got := near.awaitResume(t.Context(), first.Epoch)
		time.Sleep(time.Minute)
		if len(got) > 0 {
			t.Fatalf("%+v", <-got)
		}
		again := had.own(t, key)[0]
		if r := <-got; r.err != nil || r.route.Node != had.id || r.route.Epoch != again.Epoch {
			t.Errorf("%+v", r)
		}
	})
}
