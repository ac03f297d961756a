package gateway

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"

	"holdfast"
	"holdfast/internal/sessions/gateway/closing"
	"holdfast/test/poll"
)

// keepAsleep keeps sockets while the session is suspended.
var keepAsleep = &holdfast.KeepSockets{Time: patience, Buffer: 64 << 10, Asleep: true}

// The sockets of a suspended session stay open, and share one wait. The one that carries data
// does not wait for the session, and the others continue when it is resumed.
func TestSocketsOfASuspendedSession(t *testing.T) {
	one, two := newLife(t, "one", nil), newLife(t, "two", nil)
	f := start(t, nil, nil)
	resumed := make(chan struct{})
	resume := sync.OnceFunc(func() { close(resumed) })
	f.sessions.set(func(_ context.Context, key holdfast.SessionKey) (holdfast.Route, error) {
		if !closing.Closed(one.left) {
			return one.route(key, 1, keepAsleep), nil
		}
		resume() // as a boot does
		return two.route(key, 2, keepAsleep), nil
	})
	f.sessions.suspended = func(ctx context.Context, epoch holdfast.Epoch) (holdfast.Route, error) {
		if epoch != 1 {
			return holdfast.Route{}, fmt.Errorf("epoch %d", epoch)
		}
		select {
		case <-resumed:
			return two.route("", 2, keepAsleep), nil
		case <-ctx.Done():
			return holdfast.Route{}, ctx.Err()
		}
	}
	var all []*websocket.Conn
	for i := range 48 {
		c := f.webSocket("ws", nil)
		ask(t, c, fmt.Sprint(i), fmt.Sprintf("one %d", i))
		all = append(all, c)
	}
	one.die()
	m := f.gateway.metrics
	poll.Until(t, "all sockets wait", func() bool { return valueOf(t, m.sleeping) == float64(len(all)) })
	f.sessions.mu.Lock()
	awaits := f.sessions.awaits
	f.sessions.mu.Unlock()
	if awaits != 1 || closing.Closed(resumed) {
		t.Errorf("%d waits; resumed: %v", awaits, closing.Closed(resumed))
	}
	ask(t, all[7], "seven", "two seven")
	poll.Until(t, "all sockets continue", func() bool {
		held, _ := f.sessions.count()
		return valueOf(t, m.sleeping) == 0 && held == len(all)
	})
	for i, c := range all {
		ask(t, c, fmt.Sprint(i), fmt.Sprintf("two %d", i))
	}
}

// Few sockets connect at once, but those with data.
func TestTurns(t *testing.T) {
	s := newResumeWaits(nil, nil)
	never, now := make(chan struct{}), make(chan struct{})
	close(now)
	var ends []func()
	for range cap(s.turns) {
		done, err := s.takeTurn(t.Context(), never)
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, done)
	}
	if done, err := s.takeTurn(t.Context(), now); err != nil {
		t.Error(err)
	} else {
		done()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.takeTurn(ctx, never); err == nil {
		t.Error("too many connect at once")
	}
	var taken atomic.Int32
	var waiting sync.WaitGroup
	for range 48 {
		waiting.Go(func() {
			done, err := s.takeTurn(t.Context(), never)
			if err != nil {
				t.Error(err)
				return
			}
			taken.Add(1)
			done()
		})
	}
	for _, end := range ends {
		end()
	}
	waiting.Wait()
	if taken.Load() != 48 || len(s.turns) != 0 {
		t.Errorf("%d turns, %d are left", taken.Load(), len(s.turns))
	}
}
