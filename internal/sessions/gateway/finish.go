package gateway

import (
	"context"
	"net/http"
	"time"
)

// Durations of Finish.
const (
	// finishMin is the minimum duration of Finish. A client that reuses its
	// connection usually gets an answer in this time, and the answer tells it to
	// open a new connection. Closing the connection instead could race with the
	// next request on it.
	finishMin = 250 * time.Millisecond
	// finishPoll is the interval at which Finish checks for parked requests.
	finishPoll = 10 * time.Millisecond
)

// Finish prepares the end of a gateway when another gateway takes over its
// listening socket and this one no longer accepts connections. From now on
// every answer tells its client to open a new connection. Finish returns when
// at least finishMin has passed and no request waits for its session, or when
// ctx is done. Requests in progress continue; Run waits for them at its end.
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

// LastAnswer marks an answer as the last of its connection once Finish has
// begun. The gateway does this for its own answers. Call it for other answers
// on the peer listener.
func (g *Gateway) LastAnswer(w http.ResponseWriter) {
	if g.finishing.Load() {
		w.Header().Set("Connection", "close")
	}
}
