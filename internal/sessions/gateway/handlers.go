package gateway

import "sync"

// handlers counts the requests in progress and can wait until there are none. A
// sync.WaitGroup does not allow Add from zero while another goroutine waits.
type handlers struct {
	mu     sync.Mutex
	n      int
	closed bool
	none   chan struct{} // closed when closed and n is 0
}

func newHandlers() *handlers { return &handlers{none: make(chan struct{})} }

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

// wait returns when close was called and the last request has ended.
func (h *handlers) wait() { <-h.none }
