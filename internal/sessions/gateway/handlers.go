package gateway

import "sync"

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
