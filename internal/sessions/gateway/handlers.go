package gateway

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// handlers counts the requests in progress and can wait until there are none. A
// sync.WaitGroup does not allow Add from zero while another goroutine waits.
type handlers struct {
	mu     sync.Mutex
	none   sync.Cond // signals that n is 0
	n      int
	closed bool
}

func newHandlers() *handlers {
	h := &handlers{}
	h.none.L = &h.mu
	return h
}

// enter counts a request. It returns false when no more requests are accepted.
func (h *handlers) enter() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.n++
	}
	return !h.closed
}

func (h *handlers) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.n
}

func (h *handlers) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.n--; h.n == 0 {
		h.none.Broadcast()
	}
}

func (h *handlers) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
}

// wait returns when the last request has ended. close was called before.
func (h *handlers) wait() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.n > 0 {
		h.none.Wait()
	}
}

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
