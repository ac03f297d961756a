package main

import "sync"

// lobby counts the people that have a terminal open and tells each of them when
// the number changes.
type lobby struct {
	limit int
	mu    sync.Mutex
	in    map[chan int]struct{}
}

func newLobby(limit int) *lobby { return &lobby{limit: limit, in: map[chan int]struct{}{}} }

// join lets one more in, unless the lobby is full. news yields the latest
// number, the first at once; leave has to be called at the end.
func (l *lobby) join() (news <-chan int, leave func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.in) >= l.limit {
		return nil, nil, false
	}
	c := make(chan int, 1)
	l.in[c] = struct{}{}
	l.tell()
	return c, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.in, c)
		l.tell()
	}, true
}

// tell puts the number in every client's channel in place of one not read yet.
func (l *lobby) tell() {
	for c := range l.in {
		select {
		case <-c:
		default:
		}
		c <- len(l.in)
	}
}
