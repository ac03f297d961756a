package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"holdfast"
)

// What gateways say to each other. No client and no session can: headers that
// begin with reservedPrefix are taken off what comes from them.
const (
	sessionHeader = reservedPrefix + "Session" // of a request: whose it is
	epochHeader   = reservedPrefix + "Epoch"   // of a request: since when the owner has it
	refusedHeader = reservedPrefix + "Refused" // of a 421: why nothing was sent to the session
	failedHeader  = reservedPrefix + "Failed"  // of a 502 or 504: why there is no answer
)

// Values of refusedHeader, and with that of a metric's label.
const (
	refusedHold      = "hold"      // the epoch is not ready there
	refusedLeft      = "left"      // it was, and has just left
	refusedServer    = "server"    // its server refuses connections
	refusedStopping  = "stopping"  // the gateway is, or has not begun yet
	refusedMalformed = "malformed" // not a forwarded request; answered with 400
)

var refusals = []string{refusedHold, refusedLeft, refusedServer, refusedStopping, refusedMalformed}

// Values of failedHeader.
const (
	failedLeft   = "left"   // the session left before it answered
	failedBroke  = "broke"  // its server broke off
	failedTime   = "time"   // it did not begin its answer in time
	failedClient = "client" // the request itself broke off
)

var (
	errRefused = errors.New("it refused the request")
	errFailed  = errors.New("the session's server broke off before its answer")
)

// forward sends the request to the route's node. A body is offered first. The
// request is cut off when the session leaves.
func (y *try) forward(g *Gateway, out *http.Request) (*http.Response, error) {
	t := y.request
	ctx, cancel := context.WithCancelCause(out.Context())
	out = out.WithContext(ctx)
	out.Header = out.Header.Clone()
	out.Header.Set(sessionHeader, string(t.key))
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
	resp, err := y.roundTrip(g, g.nodes, out)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	if err := verdict(t.route.Node, resp); err != nil {
		resp.Body.Close()
		cancel(nil)
		return nil, err
	}
	return resp, nil
}

// cutOff calls cancel a moment after left is closed, or when ctx is done.
// Without it a machine that has vanished would leave its clients waiting.
func cutOff(ctx context.Context, cancel context.CancelCauseFunc, left <-chan struct{}) {
	defer cancel(errNodeLeft)
	select {
	case <-left:
	case <-ctx.Done():
		return
	}
	timer := time.NewTimer(leftWait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// verdict says what another node's gateway thinks of the request. A session's
// own answer is nil.
func verdict(node holdfast.NodeID, resp *http.Response) error {
	if why := resp.Header.Get(refusedHeader); why != "" && resp.StatusCode == http.StatusMisdirectedRequest {
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

// results are the values of a metric's label.
var results = []string{"answered", "refused", "unreachable", "broke", "failed"}

// resultOf says what became of a request to another node.
func resultOf(err error) string {
	var (
		refused *refusedError
		broken  *brokenError
		agreed  *switched
	)
	switch {
	case err == nil, errors.As(err, &agreed):
		return "answered"
	case errors.As(err, &refused) && errors.Is(err, errRefused):
		return "refused"
	case errors.As(err, &refused):
		return "unreachable"
	case errors.As(err, &broken):
		return "broke"
	}
	return "failed"
}
