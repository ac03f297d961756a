package reattach

import (
	"context"
	"time"
)

// search looks for the next server of a socket, when the session is not suspended or the client
// has sent data. One goroutine uses it.
type search struct {
	socket *socket
	ctx    context.Context
	awake  <-chan struct{} // see Spec.Awake; nil once the search has begun
	leave  func()          // ends the wait for awake
	hurry  chan struct{}
	done   chan found
	begun  time.Time // after the sleep of the session
}

// found is the result of a search.
type found struct {
	server Server
	err    error
	begun  time.Time // of the search
}

// newSearch returns a search that has begun, unless the session may be suspended.
func (s *socket) newSearch(ctx context.Context) *search {
	x := &search{socket: s, ctx: ctx, hurry: make(chan struct{}), done: make(chan found), begun: time.Now()}
	if s.spec.Awake != nil {
		x.awake, x.leave = s.spec.Awake()
		return x
	}
	x.find()
	return x
}

// begin begins the search, if it has not begun.
func (x *search) begin() {
	if x.awake != nil {
		x.end()
		x.begun = time.Now()
		x.find()
	}
}

// end ends the wait for the session.
func (x *search) end() {
	if x.awake != nil {
		x.awake = nil
		x.leave()
	}
}

// find asks for the next server. The result has to be received from done.
func (x *search) find() {
	begun := x.begun
	go func() {
		ctx, cancel := context.WithTimeout(x.ctx, x.socket.spec.Policy.Time)
		defer cancel()
		server, err := x.socket.spec.Next(ctx, x.hurry)
		x.done <- found{server, err, begun}
	}()
}
