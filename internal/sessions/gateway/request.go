package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"holdfast"
	"holdfast/internal/sessions/gateway/closing"
	"holdfast/internal/sessions/gateway/upstream"
)

const (
	// A session that is ready but refuses connections is tried again up to
	// retries times, from retryFirst on with exponential backoff: 1.3 s in total.
	// Its server may be restarting inside its container. If something else than
	// the server refuses, or the session leaves, the limit is the parking time
	// instead.
	retries    = 8
	retryFirst = 5 * time.Millisecond
	retryMost  = 640 * time.Millisecond

	// repeats is how often a request that the session may have received is sent
	// again. It limits how many servers of a session one request can crash.
	repeats = 3
)

// request is one request and the state of its way to the session.
type request struct {
	target
	gateway      *Gateway
	answer       *answer         // nil for a request of the gateway itself
	slot         *slot           // nil for a request of another node
	client       netip.Addr      // see clientOf
	bootsNothing bool            // see Config.bootsNothing
	forwarded    bool            // by another node's gateway
	raw          bool            // a TCP connection, see TCPAddress
	reattaching  bool            // asks the next server of a kept WebSocket; the parking limits do not apply
	keepOffered  bool            // by the other node's gateway
	waiting      context.Context // for parking: ends when the client hangs up
	unwatch      func()          // stops the hangup checks; idempotent
	patience     time.Duration   // remaining parking time
	route        holdfast.Route
	release      func() // nil: nothing is held
	body         *body  // nil: there is none
	again        bool   // may be sent twice, as far as its method goes

	begun    *upstream.Direct // the request was sent on it by the fast path; nil: it was not
	received []byte           // of the response, from begun
}

// reach acquires the session and calls do until do succeeds or fails in a way
// that another try would not fix. A refused request is tried again; this is
// safe for every method, because nothing was sent. A request whose connection
// broke is tried again if it may be sent twice and its session has left.
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
		if !t.vouched(err) {
			t.gateway.sessions.Refused(t.key, t.route)
		}
		left := t.route.Left
		t.done()
		if err := t.pause(ctx, h.pause(&left), left); err != nil {
			return err
		}
	}
}

// attempt calls do unless the server is known to be gone. The time that a
// refusal takes counts as parking, because no session has had the request.
func (t *request) attempt(do func() error) error {
	if t.begun == nil && closing.Closed(t.route.Left) {
		return &refusedError{error: fmt.Errorf("session %s has just left %s", t.key, t.route.Address)}
	}
	start := time.Now()
	err := do()
	if is[*refusedError](err) {
		t.spend(start)
	}
	return err
}

// history records the tries of a request.
type history struct {
	last    holdfast.Route // of the last try
	refused int            // consecutive refusals by the server of last while its session stayed
	repeats int
	paused  int
}

// allows reports whether another try may follow err.
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
		if !same || !refused.byServer || closing.Closed(t.route.Left) {
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

// isGone reports whether the session has left after its server broke the
// connection. For a session on another node, that node reports it and has
// already waited closing.LeftWait.
func (t *request) isGone(ctx context.Context, broken *brokenError) bool {
	return broken.gone || t.route.Node == "" && closing.AwaitLeft(ctx, t.route.Left)
}

// pause returns how long to wait before the next try. The end of a route ends
// only the first pause early: with a route that has already ended at every try,
// the loop would not pause at all.
func (h *history) pause(left *<-chan struct{}) time.Duration {
	if h.paused > 0 && closing.Closed(*left) {
		*left = nil
	}
	d := min(retryFirst<<min(h.paused, 10), retryMost)
	h.paused++
	return d
}

func (t *request) acquire(ctx context.Context) error {
	if t.begun != nil {
		return nil // the fast path has
	}
	// Nothing that waits is counted, limited or bounded in time for a session that is
	// ready: on busy CPUs a burst of requests to it must not be refused.
	if r, release, ok := t.gateway.sessions.Ready(t.key); ok {
		t.gateway.metrics.parkTime.Observe(0)
		t.release = release
		var err error
		t.route, err = t.atPort(r)
		return err
	}
	boot := t.mayBoot
	if t.reattaching {
		boot = nil // the session moves
	}
	return t.park(ctx, func(ctx context.Context) (err error) {
		t.route, t.release, err = t.gateway.sessions.Acquire(ctx, t.key, boot)
		if err == nil {
			t.route, err = t.atPort(t.route)
		}
		return err
	})
}

// pause waits for d, or until the route that refused has ended.
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

// park calls f with the remaining parking time as its limit.
func (t *request) park(ctx context.Context, f func(context.Context) error) error {
	defer t.spend(time.Now())
	if t.reattaching {
		ctx, cancel := context.WithTimeoutCause(ctx, t.patience, errParkedTooLong)
		defer cancel()
		return f(ctx)
	}
	return t.gateway.parking.wait(ctx, t.key, t.patience, f)
}

// spend subtracts the time since start from the remaining parking time. The
// time that a session works on the request is not parking: a long poll whose
// session moves has the full parking time.
func (t *request) spend(start time.Time) { t.patience -= time.Since(start) }

// takeBegun returns the connection on which the fast path has sent the request, and what it
// received. It is nil for a request that was not sent, and after the first call.
func (t *request) takeBegun() (server *upstream.Direct, received []byte) {
	server, received = t.begun, t.received
	t.begun, t.received = nil, nil
	return server, received
}

// dropBegun ends the connection of a request that was not resumed.
func (t *request) dropBegun() {
	if server, _ := t.takeBegun(); server != nil {
		server.End(false)
	}
}

// done releases what Acquire held.
func (t *request) done() {
	if t.release != nil {
		t.release()
		t.release = nil
	}
}
