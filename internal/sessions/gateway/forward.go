package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"holdfast/internal/sessions/gateway/closing"
)

// Headers between gateways. Neither a client nor a session can send them: the
// gateway removes every header that begins with reservedPrefix from their
// messages.
const (
	sessionHeader = reservedPrefix + "Session" // of a request: the session's key, or key:port
	epochHeader   = reservedPrefix + "Epoch"   // of a request: the session's epoch
	rawHeader     = reservedPrefix + "Raw"     // of an upgrade request: the connection goes to the server as it is
	refusedHeader = reservedPrefix + "Refused" // of a 421: why nothing was sent to the session
	failedHeader  = reservedPrefix + "Failed"  // of a 502 or 504: why there is no answer
)

// Values of refusedHeader and of the label reason of the refusals metric.
const (
	refusedHold      = "hold"      // the epoch is not ready on that node
	refusedLeft      = "left"      // the session was ready and has just left
	refusedServer    = "server"    // the session's server refuses connections
	refusedStopping  = "stopping"  // the gateway is stopping or has not started yet
	refusedPort      = "port"      // clients may not reach this port of the session
	refusedMalformed = "malformed" // not a forwarded request; answered with 400
)

var refusals = []string{refusedHold, refusedLeft, refusedServer, refusedStopping, refusedPort, refusedMalformed}

// Values of failedHeader.
const (
	failedLeft   = "left"   // the session left before it answered
	failedBroke  = "broke"  // the session's server broke off
	failedTime   = "time"   // the session did not begin its answer in time
	failedClient = "client" // the request broke off
)

var (
	errRefused = errors.New("the node refused the request")
	errFailed  = errors.New("the session's server closed the connection before its answer")
)

// forward sends the request to the node of the route. It offers a body first
// (see offer) and cancels the request when the session leaves that node.
func (y *try) forward(g *Gateway, out *http.Request) (*http.Response, error) {
	t := y.request
	ctx, cancel := context.WithCancelCause(out.Context())
	out = out.WithContext(ctx)
	out.Header = out.Header.Clone()
	out.Header.Set(sessionHeader, forwardedTarget(cmp.Or(t.route.Key, t.key), t.port)) // the request may name a group
	out.Header.Set(epochHeader, strconv.FormatInt(int64(t.route.Epoch), 10))
	out.Header.Del("Expect")
	if isWebSocket(out.Header) {
		out.Header.Set(keepHeader, keepOffered)
	}
	if t.body != nil {
		out.Header.Set("Expect", "100-continue")
		out.Body = offeredBody{t.body, &y.offer}
		y.offer.make()
		defer time.AfterFunc(offerTime, func() {
			if y.offer.withdraw() {
				cancel(errNotAccepted)
			}
		}).Stop()
	}
	go cutOff(ctx, cancel, t.route.Left)
	resp, err := y.roundTrip(g, out)
	y.end()
	if err != nil {
		cancel(nil)
		return nil, err
	}
	if err := t.verdict(resp); err != nil {
		resp.Body.Close()
		if is[*brokenError](err) && context.Cause(ctx) == errNodeLeft {
			err = errNodeLeft // the node answers the end of the connection
		}
		cancel(nil)
		return nil, err
	}
	return resp, nil
}

// cutOff calls cancel when closing.LeftWait has passed after left was closed, or when ctx is done.
// Without it, clients would wait for a machine that has vanished.
func cutOff(ctx context.Context, cancel context.CancelCauseFunc, left <-chan struct{}) {
	defer cancel(errNodeLeft)
	select {
	case <-left:
	case <-ctx.Done():
		return
	}
	timer := time.NewTimer(closing.LeftWait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// verdict returns the error that the gateway of the other node reports, nil for
// an answer of the session itself.
func (t *request) verdict(resp *http.Response) error {
	node := t.route.Node
	if why := resp.Header.Get(refusedHeader); why != "" && resp.StatusCode == http.StatusMisdirectedRequest {
		if why == refusedPort {
			return &portError{port: t.port, of: cmp.Or(t.route.Key, t.key)}
		}
		return &refusedError{error: fmt.Errorf("node %s: %w (%.40q)", node, errRefused, why), byServer: why == refusedServer}
	}
	switch why := resp.Header.Get(failedHeader); why {
	case "":
		return nil
	case failedTime:
		return &lateError{node}
	default:
		return &brokenError{error: fmt.Errorf("node %s: %w", node, errFailed), gone: why == failedLeft}
	}
}

// results are the values of the label result of the metric of forwarded
// requests.
var results = []string{"answered", "refused", "unreachable", "broke", "failed"}

// resultOf returns the result label for a request to another node that ended
// with err.
func resultOf(err error) string {
	switch {
	case err == nil, is[*switched](err):
		return "answered"
	case errors.Is(err, errRefused):
		return "refused"
	case is[*refusedError](err):
		return "unreachable"
	case is[*brokenError](err):
		return "broke"
	}
	return "failed"
}

// offerTime is how long another node may take to accept a request's body: to
// check that it has the session, and to connect to it.
const offerTime = 2 * dialTimeout

// offer tracks whether another node has accepted the body of a request. The
// body is sent only after the node accepted it with 100 Continue. Until then no
// byte of the request has reached the session, so the request may be sent to
// another node.
type offer struct{ state atomic.Int32 }

const (
	offerOpen int32 = iota + 1
	offerAccepted
	offerWithdrawn
)

var errNotAccepted = errors.New("the other node has not asked for the request's body")

func (o *offer) make()           { o.state.Store(offerOpen) }
func (o *offer) accept()         { o.state.CompareAndSwap(offerOpen, offerAccepted) }
func (o *offer) withdraw() bool  { return o.state.CompareAndSwap(offerOpen, offerWithdrawn) }
func (o *offer) open() bool      { return o.state.Load() == offerOpen }
func (o *offer) withdrawn() bool { return o.state.Load() == offerWithdrawn }

// offeredBody is a body that cannot be read before it was accepted.
type offeredBody struct {
	*body
	offer *offer
}

func (b offeredBody) Read(p []byte) (int, error) {
	if b.offer.state.Load() != offerAccepted {
		return 0, errNotAccepted
	}
	return b.body.Read(p)
}
