package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast"
)

const (
	// A session that is ready but refuses connections is tried again a few
	// times, from retryFirst on, doubling: 1.3 s in all. Its server may be
	// restarting inside its container. Where it is not the server that
	// refuses, or the session does not stay, there is no such bound: then
	// the time for parking is.
	retries    = 8
	retryFirst = 5 * time.Millisecond
	retryMost  = 640 * time.Millisecond

	// repeats is how often a request is sent again that may have been
	// received. It is what a session may lose of its servers to a request
	// that kills them.
	repeats = 3

	// leftWait is how long to wait for the news that explains a connection's
	// end. The kernel tells of a killed server before anybody else does.
	leftWait = 500 * time.Millisecond
)

// request is one request on its way to its session.
type request struct {
	target
	gateway     *Gateway
	forwarded   bool            // it came from another node's gateway
	reattaching bool            // asks the next server of a kept WebSocket; the parking limits do not apply
	keepOffered bool            // by the other node's gateway
	waiting     context.Context // for parking: ends when the client hangs up
	unwatch     func()          // ends the looking for it; any number of calls
	patience    time.Duration   // what is left for its parking
	route       holdfast.Route
	release     func() // nil: nothing is held
	body        *body  // nil: there is none
	again       bool   // may be sent twice, as far as its method goes
}

type requestKey struct{}

func requestOf(ctx context.Context) *request {
	t, _ := ctx.Value(requestKey{}).(*request)
	return t
}

// reach acquires the session and calls do until it succeeds, or fails in a way
// that another try would not mend. A request that was refused looks for its
// session again; this is safe for every method, because nothing was sent. One
// that broke off does so if it may be sent twice and its session has gone.
func (t *request) reach(ctx context.Context, do func() error) error {
	var h history
	for {
		if err := t.acquire(ctx); err != nil {
			return err
		}
		err := t.attempt(do)
		if err == nil || !h.allows(ctx, t, err) {
			return err
		}
		t.gateway.sessions.Refused(t.key, t.route)
		left := t.route.Left
		t.done()
		if err := t.pause(ctx, h.pause(&left), left); err != nil {
			return err
		}
	}
}

// attempt does not bother to dial a server that is known to be gone. What it
// takes to be refused is parking, too: nobody has had the request.
func (t *request) attempt(do func() error) error {
	if closed(t.route.Left) {
		return &refusedError{error: fmt.Errorf("session %s has just left %s", t.key, t.route.Address)}
	}
	start := time.Now()
	err := do()
	var refused *refusedError
	if errors.As(err, &refused) {
		t.spend(start)
	}
	return err
}

// history is what became of a request's tries.
type history struct {
	last    holdfast.Route // that was tried
	refused int            // tries that last's server refused in a row, while its session stayed
	repeats int
	paused  int
}

// allows reports whether there may be another try after err.
func (h *history) allows(ctx context.Context, t *request, err error) bool {
	var (
		refused *refusedError
		broken  *brokenError
	)
	spent := t.body != nil && t.body.spent()
	switch {
	case errors.As(err, &refused) && spent:
		return false
	case errors.As(err, &refused):
		same := h.last.Node == t.route.Node && h.last.Address == t.route.Address && h.last.Epoch == t.route.Epoch
		if !same || !refused.byServer || closed(t.route.Left) {
			h.refused = 0
		}
		h.last = t.route
		h.refused++
		return h.refused <= retries
	case errors.As(err, &broken):
		h.repeats++
		gone := t.isGone(ctx, broken)
		broken.unsure = gone && (!t.again || spent)
		return gone && !broken.unsure && h.repeats <= repeats
	}
	return false
}

// isGone reports whether a session whose server broke off has left. Of one on
// another node that node has told; it has waited for the news.
func (t *request) isGone(ctx context.Context, broken *brokenError) bool {
	return broken.gone || t.route.Node == "" && t.leaves(ctx)
}

// pause is how long to wait before the next try. A route that was known to be
// gone already ends the first pause only: who is given such a one again and
// again is not to ask for it without a break.
func (h *history) pause(left *<-chan struct{}) time.Duration {
	if h.paused > 0 && closed(*left) {
		*left = nil
	}
	d := min(retryFirst<<min(h.paused, 10), retryMost)
	h.paused++
	return d
}

// leaves waits a moment for the news that the session leaves.
func (t *request) leaves(ctx context.Context) bool {
	timer := time.NewTimer(leftWait)
	defer timer.Stop()
	select {
	case <-t.route.Left:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

func (t *request) acquire(ctx context.Context) error {
	return t.park(ctx, func(ctx context.Context) (err error) {
		t.route, t.release, err = t.gateway.sessions.Acquire(ctx, t.key)
		return err
	})
}

// pause waits for d, or until the route that refused is known to be gone.
func (t *request) pause(ctx context.Context, d time.Duration, left <-chan struct{}) error {
	return t.park(ctx, func(ctx context.Context) error {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-left:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// park waits, for as long as the trip has patience left for it.
func (t *request) park(ctx context.Context, f func(context.Context) error) error {
	defer t.spend(time.Now())
	if t.reattaching {
		ctx, cancel := context.WithTimeoutCause(ctx, t.patience, errParkedTooLong)
		defer cancel()
		return f(ctx)
	}
	return t.gateway.parking.wait(ctx, t.key, t.patience, f)
}

// spend takes the time since start off what is left for parking. The time that a
// session has had the request for is not parking: a long poll whose session moves
// has as much patience left as one that has just come.
func (t *request) spend(start time.Time) { t.patience -= time.Since(start) }

// done gives back what Acquire held.
func (t *request) done() {
	if t.release != nil {
		t.release()
		t.release = nil
	}
}
