package reattach

import (
	"bytes"
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"holdfast"
	"holdfast/internal/sessions/gateway/closing"
	"holdfast/internal/sessions/gateway/frame"
)

// up is the direction from the client to the server. Its goroutine reads from
// the client for the lifetime of the socket.
type up struct {
	client net.Conn
	in     *reader
	answer func(pongs []byte) bool // sends the client Pongs; false: it is in the middle of a frame
	limit  int                     // bytes of queue

	flushes sync.WaitGroup
	ended   chan struct{} // closed when run returns
	gone    chan struct{} // closed when the client has gone
	pinged  chan struct{} // has an element when there is a Ping to answer
	data    chan struct{} // has an element when there is data for the next server

	exporting  atomic.Bool // run returns, so that the socket can be exported
	withServer atomic.Bool // it is exported with its server

	mu      sync.Mutex        // held while writing to the server
	room    sync.Cond         // signals that the queue is shorter, there is a server, or over is set
	server  net.Conn          // nil if there is none
	session holdfast.Activity // of the server's session; nil: it does not sleep
	queue   []byte            // whole frames that no server has received
	over    bool              // the socket ends; further bytes are discarded
	torn    bool              // a server received part of a frame or message and another cannot continue it
	inside  bool              // a message has begun and its last frame is not sent
	mid     bool              // a long frame has begun and is not sent completely
	closing bool              // the client has sent a Close frame
	ping    []byte            // the last Ping that no server has received and that is not answered
	pingAt  int               // its place in queue
	close   []byte            // the Close frame, if no server has received it
	unsent  []byte            // passed on to the server, which has not accepted it; comes before queue
}

func newUp(client net.Conn, early []byte, limit int, pool *buffers, answer func([]byte) bool) *up {
	u := &up{
		client: client, in: newReader(client, early, pool), limit: limit, answer: answer,
		ended: make(chan struct{}), gone: make(chan struct{}), pinged: make(chan struct{}, 1), data: make(chan struct{}, 1),
	}
	u.room.L = &u.mu
	return u
}

// run returns when the client sends nothing more, or the socket is exported.
func (u *up) run() {
	defer close(u.ended)
	defer u.in.release()
	for !u.exporting.Load() {
		p, err := u.in.next()
		if u.exporting.Load() && errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			close(u.gone)
			u.hangUp()
			return
		}
		if u.report(p) {
			continue
		}
		u.mu.Lock()
		u.take(p)
		u.mu.Unlock()
	}
	u.in.ahead = u.in.leftover()
}

// wait returns when the goroutines of u have ended.
func (u *up) wait() {
	<-u.ended
	u.flushes.Wait()
}

// report tells the session of a piece. It returns true if the piece has Pings for a session
// that sleeps, which are then answered.
func (u *up) report(p piece) bool {
	u.mu.Lock()
	session := u.session
	u.mu.Unlock()
	if session == nil {
		return false
	}
	if pongs, controls := []byte(nil), false; !p.long {
		if pongs, controls = frame.Controls(p.b); controls && session.Control() {
			return false
		}
		if controls && u.answer(pongs) {
			return true
		}
	}
	if !session.Data(holdfast.WokenByWebSocket) {
		u.detach() // the piece is for the next server
	}
	return false
}

// hangUp passes the client's EOF on, after everything that the client sent.
func (u *up) hangUp() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.server != nil {
		closing.Write(u.server)
	}
}

// take sends a piece to the server or queues it, and waits until one of them is
// possible.
func (u *up) take(p piece) {
	for !u.over {
		switch {
		case u.server != nil:
			if u.send(p) {
				return
			}
		case u.mid: // a server that has gone received its beginning
			u.torn = true
			return
		case !p.long && u.enqueue(p.b):
			return
		case u.exporting.Load():
			u.in.unread(p)
			return
		default:
			notify(u.data)
			u.room.Wait()
		}
	}
}

// send returns false if the piece must go to another server.
func (u *up) send(p piece) bool {
	n, err := u.write(p.b)
	if err != nil {
		// The server reads no more: limit how long it may still send.
		u.server.SetReadDeadline(time.Now().Add(lastReadTime))
	}
	if p.long {
		return u.sentLong(p, err)
	}
	sent := 0
	frame.Each(p.b, func(f frame.Header, all []byte) {
		if sent+len(all) <= n {
			sent += len(all)
			u.passed(f)
		}
	})
	if err != nil {
		// A server cannot have processed a frame that it received only in
		// part.
		u.queue = append(u.queue, p.b[sent:]...)
		u.lose()
	}
	return true
}

// write writes to the server. If the socket is exported with it, the next process writes
// what the server does not accept at once.
func (u *up) write(b []byte) (int, error) {
	n, err := u.server.Write(b)
	if err != nil && u.withServer.Load() && errors.Is(err, os.ErrDeadlineExceeded) {
		u.unsent = append(u.unsent, b[n:]...)
		return len(b), nil
	}
	return n, err
}

// sentLong is the part of send for a piece of a long frame. The first piece can
// be sent again.
func (u *up) sentLong(p piece, err error) bool {
	if err != nil {
		u.lose()
		return !p.head
	}
	if f, ok := frame.Parse(p.b); p.head && ok {
		u.passed(f)
	}
	u.mid = u.in.midFrame()
	return true
}

// passed records a frame that the server has received.
func (u *up) passed(f frame.Header) {
	switch {
	case f.Op() == frame.Close:
		u.closing = true
	case !f.Control():
		u.inside = !f.Last()
	}
}

// enqueue takes frames that arrive while there is no server. It returns false if
// they have to wait. It discards what follows a Close frame.
func (u *up) enqueue(b []byte) bool {
	if len(u.queue) > 0 && len(u.queue)+len(b) > u.limit {
		return false
	}
	frame.Each(b, func(f frame.Header, all []byte) {
		switch legal := f.LegalControl(); {
		case u.close != nil: // nothing follows a Close frame (RFC 6455, 5.5.1)
		case legal && f.Op() == frame.Ping:
			u.ping, u.pingAt = bytes.Clone(all), len(u.queue)
			notify(u.pinged)
		case legal && f.Op() == frame.Pong: // answers a Ping of a server that has gone
		case legal && f.Op() == frame.Close:
			u.closing, u.close = true, bytes.Clone(all)
			notify(u.pinged)
		default: // data, and what the next server has to refuse
			u.queue = append(u.queue, all...)
			notify(u.data)
		}
	})
	return true
}

// notify wakes the socket to check ping and closing, or queue.
func notify(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// lose records that there is no server any more.
func (u *up) lose() {
	u.server, u.session = nil, nil
	u.torn = u.torn || u.inside || u.mid
}

// detach removes the server. A Write to it must not block any more.
func (u *up) detach() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.server != nil {
		u.lose()
	}
}

// attach directs the client's frames to the next server, the queued ones first, with a Ping
// that is not answered yet in its place, and then a Close frame. It does not wait for the queue
// to be sent.
func (u *up) attach(server net.Conn, session holdfast.Activity) {
	u.mu.Lock()
	queue, unsent := slices.Concat(u.queue[:u.pingAt], u.ping, u.queue[u.pingAt:], u.close), u.unsent
	u.pingAt = 0
	u.queue, u.server, u.session, u.ping, u.close, u.unsent = nil, server, session, nil, nil, nil
	select {
	case <-u.data: // it is in queue
	default:
	}
	if len(queue)+len(unsent) == 0 {
		u.mu.Unlock()
		u.room.Broadcast()
		return
	}
	u.flushes.Go(func() { // ends with the server's connection at the latest
		defer u.room.Broadcast()
		defer u.mu.Unlock()
		if len(unsent) > 0 {
			if _, err := u.write(unsent); err != nil { // the server has gone in the middle of it
				u.queue, u.torn = queue, true
				u.lose()
				return
			}
		}
		u.send(piece{b: queue, head: true})
	})
}

// end discards everything that still arrives.
func (u *up) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.over, u.server, u.queue = true, nil, nil
	u.room.Broadcast()
}

// look returns the state that the other direction needs.
func (u *up) look() (torn, closing bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.torn, u.closing
}

// takeControl returns the frames that the gateway has to answer, nil if there are none.
func (u *up) takeControl() (ping, close []byte) {
	u.mu.Lock()
	defer u.mu.Unlock()
	ping, close = u.ping, u.close
	u.ping, u.close = nil, nil
	return ping, close
}
