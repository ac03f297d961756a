package gateway

import (
	"context"
	"net/http"
	"time"
)

// Times of Finish.
const (
	// finishMin is for clients who use their connections again and again: each
	// has a request answered meanwhile, with which it is told to connect anew.
	// One that is closed instead may be closed under a request.
	finishMin = 250 * time.Millisecond
	// finishPoll is between two looks whether anybody is parked.
	finishPoll = 10 * time.Millisecond
)

// Finish comes before the end of a gateway that another one follows on the same
// socket, when nobody accepts connections any more. Every answer from now on
// tells its client to connect anew. It returns, after a moment in any case, when
// no request waits for its session, or when ctx is done. Requests that are under
// way then go on: the end of Run waits for them.
func (g *Gateway) Finish(ctx context.Context) {
	g.finishing.Store(true)
	least := time.NewTimer(finishMin)
	defer least.Stop()
	select {
	case <-least.C:
	case <-ctx.Done():
		return
	}
	tick := time.NewTicker(finishPoll)
	defer tick.Stop()
	for {
		if parked, _, _ := g.InFlight(); parked == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// LastAnswer marks an answer as its connection's last once Finish has begun. The
// gateway does so itself; it is for what others answer beside Hop.
func (g *Gateway) LastAnswer(w http.ResponseWriter) {
	if g.finishing.Load() {
		w.Header().Set("Connection", "close")
	}
}
