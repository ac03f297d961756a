package gateway

import (
	"errors"
	"sync/atomic"
)

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
