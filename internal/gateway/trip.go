package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"holdfast"
)

const (
	dialTimeout = 5 * time.Second

	// A session that is ready but refuses connections is tried again a few
	// times, from retryFirst on, doubling: 1.3 s in all. Its server may be
	// restarting inside its container.
	retries    = 8
	retryFirst = 5 * time.Millisecond
)

// trip is one request on its way to its session.
type trip struct {
	target
	gateway  *Gateway
	waiting  context.Context // for parking: ends when the client hangs up
	unwatch  func()          // ends the looking for it; any number of calls
	deadline time.Time       // of all its parking
	route    holdfast.Route
	release  func() // nil: nothing is held
}

type tripKey struct{}

func tripOf(ctx context.Context) *trip {
	t, _ := ctx.Value(tripKey{}).(*trip)
	return t
}

// refusedError says that a session's server could not be reached. Nothing was
// sent.
type refusedError struct{ error }

func (e *refusedError) Unwrap() error { return e.error }

// reach acquires the session and calls do until it does not fail with a
// *refusedError. A request that was refused looks for its session again; this
// is safe for every method, because nothing was sent.
func (t *trip) reach(ctx context.Context, do func() error) error {
	pause := retryFirst
	for attempt := 0; ; attempt++ {
		if err := t.acquire(ctx); err != nil {
			return err
		}
		err := t.attempt(do)
		var refused *refusedError
		if !errors.As(err, &refused) || attempt == retries {
			return err
		}
		t.gateway.sessions.Refused(t.key, t.route)
		left := t.route.Left
		t.done()
		if err := t.pause(ctx, pause, left); err != nil {
			return err
		}
		pause *= 2
	}
}

// attempt does not bother to dial a server that is known to be gone.
func (t *trip) attempt(do func() error) error {
	select {
	case <-t.route.Left:
		return &refusedError{fmt.Errorf("session %s has just left %s", t.key, t.route.Address)}
	default:
		return do()
	}
}

func (t *trip) acquire(ctx context.Context) error {
	return t.gateway.parking.wait(ctx, t.key, time.Until(t.deadline), func(ctx context.Context) (err error) {
		t.route, t.release, err = t.gateway.sessions.Acquire(ctx, t.key)
		return err
	})
}

// pause waits for d, or until the route that refused is known to be gone.
func (t *trip) pause(ctx context.Context, d time.Duration, left <-chan struct{}) error {
	return t.gateway.parking.wait(ctx, t.key, time.Until(t.deadline), func(ctx context.Context) error {
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

// done gives back what Acquire held.
func (t *trip) done() {
	if t.release != nil {
		t.release()
		t.release = nil
	}
}

// host stands in for the address in the pool of kept-alive connections: it names
// this one life of the session, so that no connection is used for another that
// got the same address later.
func (t *trip) host() string { return fmt.Sprintf("%s.epoch-%d", t.key, t.route.Epoch) }

// routeKey is for the route of one attempt. A dial may outlive the attempt that
// asked for it.
type routeKey struct{}

// dialPooled is called by the pool for a new connection to a host() of a trip.
func (g *Gateway) dialPooled(ctx context.Context, _, _ string) (net.Conn, error) {
	r, _ := ctx.Value(routeKey{}).(holdfast.Route)
	return g.dial(ctx, r)
}

// dial connects to the route's server. Its error is a *refusedError.
func (g *Gateway) dial(ctx context.Context, r holdfast.Route) (net.Conn, error) {
	c, err := g.dialer.DialContext(ctx, "tcp", r.Address)
	if err != nil {
		return nil, &refusedError{err}
	}
	// Where the session left meanwhile, the address may be somebody else's.
	select {
	case <-r.Left:
		c.Close()
		return nil, &refusedError{fmt.Errorf("session %s left %s during the dial", r.Key, r.Address)}
	default:
		return c, nil
	}
}

// RoundTrip implements http.RoundTripper for the reverse proxy. For an upgrade
// that the server agrees to, the error is a *switched.
func (g *Gateway) RoundTrip(req *http.Request) (resp *http.Response, err error) {
	t := tripOf(req.Context())
	err = t.reach(t.waiting, func() error {
		out := req.WithContext(context.WithValue(req.Context(), routeKey{}, t.route))
		u := *req.URL
		u.Scheme, u.Host = "http", t.host()
		out.URL = &u
		if req.Header.Get("Upgrade") != "" {
			resp, err = g.roundTripUpgrade(out, t)
			return err
		}
		if req.Body != nil {
			out.Body = unclosed{req.Body} // a failed dial closes it, and it is needed again
		}
		resp, err = g.pool.RoundTrip(out)
		if err == nil && resp.StatusCode == http.StatusSwitchingProtocols {
			// The connection is the caller's now, and nobody would close it.
			resp.Body.Close()
			resp, err = nil, errUnasked
		}
		return err
	})
	t.unwatch()
	return resp, err
}
