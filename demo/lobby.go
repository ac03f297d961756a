package main

import "sync"

// lobby counts the open terminals, and sends each of them the number when it changes.
type lobby struct {
	limit int
	mu    sync.Mutex
	in    map[chan int]struct{}
}

func newLobby(limit int) *lobby { return &lobby{limit: limit, in: map[chan int]struct{}{}} }

// join adds a terminal; ok is false if the limit is reached. The channel news receives
// the current number at once, and then each change. The caller must call leave at the end.
func (l *lobby) join() (news <-chan int, leave func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.in) >= l.limit {
		return nil, nil, false
	}
	c := make(chan int, 1)
	l.in[c] = struct{}{}
	l.notify()
	return c, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.in, c)
		l.notify()
	}, true
}

// notify puts the number into the channel of every terminal, in place of an unread one.
func (l *lobby) notify() {
	for c := range l.in {
		select {
		case <-c:
		default:
		}
		c <- len(l.in)
	}
}
