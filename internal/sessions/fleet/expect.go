package fleet

import (
	"context"
	"slices"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/platform/tasks"
)

// AnnouncementTTL is how long an announcement is valid. When the session's image
// starts to arrive, the time starts again.
const AnnouncementTTL = 2 * time.Minute

// Bounds of what other nodes may announce.
const (
	maxExpected = 8192 // sessions
	maxClaims   = 64   // at once; the node's own bound on boots is lower
)

// expectation is a session that another node has announced. This node claims it when
// that node's record of it is gone.
type expectation struct {
	Departing
	from  holdfast.NodeID
	until time.Time
}

// expected are the sessions that this node is to take over.
type expected struct {
	f    *Fleet
	wake chan struct{} // a session may be due

	mu    sync.Mutex
	byKey map[holdfast.SessionKey]*expectation
	due   [2][]*expectation // sessions whose record is gone: first those with clients, then the others
}

func newExpected(f *Fleet) *expected {
	return &expected{f: f, wake: make(chan struct{}, 1), byKey: map[holdfast.SessionKey]*expectation{}}
}

// add records announcements and returns how many fit.
func (x *expected) add(from holdfast.NodeID, sessions []Departing) int {
	n := x.put(from, sessions, time.Now().Add(AnnouncementTTL))
	x.f.deps.Metrics.handovers.WithLabelValues("expected").Add(float64(n))
	// The directory does not report again a record that is already gone.
	for _, s := range sessions[:n] {
		if over, replaced := x.f.dir.ended(s.Key, s.Epoch); over && !replaced {
			x.gone(s.Key, s.Epoch)
		}
	}
	return n
}

func (x *expected) put(from holdfast.NodeID, sessions []Departing, until time.Time) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i, s := range sessions {
		if _, again := x.byKey[s.Key]; !again && len(x.byKey) >= maxExpected {
			return i
		}
		x.byKey[s.Key] = &expectation{s, from, until}
	}
	return len(sessions)
}

// gone is called for every removed record. It never blocks.
func (x *expected) gone(key holdfast.SessionKey, epoch holdfast.Epoch) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.byKey[key]
	if e == nil || epoch < e.Epoch {
		return
	}
	delete(x.byKey, key)
	if epoch > e.Epoch { // another node has owned the session since
		return
	}
	i := 1
	if e.Connected {
		i = 0
	}
	x.due[i] = append(x.due[i], e)
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

// run claims due sessions until ctx is done, and waits for the claims that it has
// started.
func (x *expected) run(ctx context.Context) {
	var claims sync.WaitGroup
	defer claims.Wait()
	slots := make(chan struct{}, maxClaims)
	for {
		select {
		case slots <- struct{}{}: // take a slot before choosing the session
		case <-ctx.Done():
			return
		}
		e := x.next(ctx)
		if e == nil {
			return
		}
		claims.Go(func() {
			defer func() { <-slots }()
			x.claim(ctx, e)
		})
	}
}

// next waits until a session is due. It returns nil if ctx is done first.
func (x *expected) next(ctx context.Context) *expectation {
	sweep := time.NewTicker(AnnouncementTTL / 12)
	defer sweep.Stop()
	for {
		if e := x.pop(); e != nil {
			return e
		}
		select {
		case <-x.wake:
		case now := <-sweep.C:
			x.sweep(now)
		case <-ctx.Done():
			return nil
		}
	}
}

func (x *expected) pop() *expectation {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := range x.due {
		if len(x.due[i]) > 0 {
			e := x.due[i][0]
			x.due[i] = slices.Delete(x.due[i], 0, 1)
			return e
		}
	}
	return nil
}

// sweep drops expired announcements.
func (x *expected) sweep(now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for key, e := range x.byKey {
		if now.After(e.until) {
			delete(x.byKey, key)
			x.f.deps.Metrics.handovers.WithLabelValues("expired").Inc()
		}
	}
}

// claim boots one session on this node. Its clients connect by themselves.
func (x *expected) claim(ctx context.Context, e *expectation) {
	ctx, cancel := context.WithDeadline(ctx, e.until.Add(AnnouncementTTL)) // the boot takes time, too
	defer cancel()
	var err error
	for pause := minBackoff; ; pause = min(2*pause, maxBackoff) {
		if ctx.Err() != nil || !time.Now().Before(e.until) {
			// A client's request has placed the session meanwhile.
			x.f.deps.Metrics.handovers.WithLabelValues("expired").Inc()
			return
		}
		_, err = x.f.local(ctx, acquireRequest{Key: e.Key, Template: e.Template, Place: true})
		if plainKind(err) != kindStore || final(err) || tasks.Sleep(ctx, jitter(pause)) != nil {
			break
		}
	}
	event := "failed"
	switch {
	case err == nil:
		event = "claimed"
	case kindOf(err) == kindElsewhere:
		x.f.learn(err)
		event = "elsewhere"
	case ctx.Err() == nil:
		x.f.log.Warn("taking over a session from another node", "session", e.Key, "from", e.from, "err", err)
	}
	x.f.deps.Metrics.handovers.WithLabelValues(event).Inc()
}
