package gateway

import "sync"

// handlers counts the requests under way, and can wait until there are none.
// A sync.WaitGroup does not allow for one that comes while somebody waits.
type handlers struct {
	mu     sync.Mutex
	n      int
	closed bool
	none   chan struct{} // closed when closed and n is 0
}

func newHandlers() *handlers { return &handlers{none: make(chan struct{})} }

// enter counts a request in; it is false when no more are taken.
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
	h.n--
	if h.closed && h.n == 0 {
		close(h.none)
	}
}

func (h *handlers) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.closed = true
		if h.n == 0 {
			close(h.none)
		}
	}
}

// wait returns when close was called and the last request has left.
func (h *handlers) wait() { <-h.none }
