package gateway

import (
	"context"
	"runtime"
	"sync"

	"holdfast"
)

// resumeWaits makes kept sockets wait while their session is suspended. The sockets of a session
// share one wait. Its methods may be called from any goroutine.
type resumeWaits struct {
	sessions Sessions
	metrics  *Metrics
	turns    chan struct{} // has an element for each socket without data that connects

	mu    sync.Mutex
	byKey map[holdfast.SessionKey]*resumeWait
}

// resumeWait is the wait of all sockets of a session.
type resumeWait struct {
	epoch  holdfast.Epoch
	users  int // guarded by resumeWaits.mu
	cancel context.CancelFunc
	done   chan struct{}

	route holdfast.Route // valid once done is closed
	err   error
}

func newResumeWaits(s Sessions, m *Metrics) *resumeWaits {
	// More sockets at once than CPUs would delay the one whose data has resumed the session.
	return &resumeWaits{sessions: s, metrics: m, turns: make(chan struct{}, runtime.GOMAXPROCS(0)), byKey: map[holdfast.SessionKey]*resumeWait{}}
}

// await is Sessions.AwaitResume.
func (s *resumeWaits) await(ctx context.Context, key holdfast.SessionKey, epoch holdfast.Epoch) (holdfast.Route, error) {
	w := s.join(key, epoch)
	defer s.leave(key, w)
	select {
	case <-w.done:
		return w.route, w.err
	case <-ctx.Done():
		return holdfast.Route{}, ctx.Err()
	}
}

// join joins the wait of a session, or starts it. leave has to be called once.
func (s *resumeWaits) join(key holdfast.SessionKey, epoch holdfast.Epoch) *resumeWait {
	s.metrics.sleeping.Inc()
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.byKey[key]
	if w == nil || w.epoch != epoch {
		ctx, cancel := context.WithCancel(context.Background())
		w = &resumeWait{epoch: epoch, cancel: cancel, done: make(chan struct{})}
		s.byKey[key] = w
		go func() { // until the last socket leaves
			defer close(w.done)
			w.route, w.err = s.sessions.AwaitResume(ctx, key, epoch)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.removeLocked(key, w)
		}()
	}
	w.users++
	return w
}

// leave ends the wait with its last socket.
func (s *resumeWaits) leave(key holdfast.SessionKey, w *resumeWait) {
	s.metrics.sleeping.Dec()
	s.mu.Lock()
	w.users--
	last := w.users == 0
	if last {
		s.removeLocked(key, w)
	}
	s.mu.Unlock()
	if last {
		w.cancel()
		<-w.done
	}
}

func (s *resumeWaits) removeLocked(key holdfast.SessionKey, w *resumeWait) {
	if s.byKey[key] == w {
		delete(s.byKey, key)
	}
}

// takeTurn waits until few other sockets without data connect, or until hurry is closed. done is
// to be called when the socket is connected.
func (s *resumeWaits) takeTurn(ctx context.Context, hurry <-chan struct{}) (done func(), err error) {
	select {
	case s.turns <- struct{}{}:
		return func() { <-s.turns }, nil
	case <-hurry:
		return func() {}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
