package reattach

import (
	"net"
	"sync"
	"time"
)

// up is the direction from the client to the server. Its goroutine reads the
// client for as long as the socket lives.
type up struct {
	client net.Conn
	in     *reader
	limit  int // bytes of queue

	flushes sync.WaitGroup
	gone    chan struct{} // closed when the client has gone
	pinged  chan struct{} // has one when there is a Ping to answer

	mu      sync.Mutex // held while the server is written to
	room    sync.Cond  // the queue got shorter, there is a server, or it is over
	server  net.Conn   // nil while there is none
	queue   []byte     // whole frames that no server has got
	over    bool       // nobody wants any more; what comes is thrown away
	torn    bool       // a server got a part of a frame, or of a message, and no other can have the rest
	inside  bool       // a message was begun and its last frame is not sent
	mid     bool       // a long frame was begun and is not sent to its end
	closing bool       // the client has sent a Close frame
	ping    []byte     // payload of the last Ping that no server has got
}

func newUp(client net.Conn, early []byte, limit int, pool *buffers) *up {
	u := &up{
		client: client, in: newReader(client, early, pool), limit: limit,
		gone: make(chan struct{}), pinged: make(chan struct{}, 1),
	}
	u.room.L = &u.mu
	return u
}

// run returns when the client says no more.
func (u *up) run() {
	defer u.in.release()
	for {
		p, err := u.in.next()
		if err != nil {
			close(u.gone)
			u.hangUp()
			return
		}
		u.mu.Lock()
		u.take(p)
		u.mu.Unlock()
	}
}

// hangUp passes the client's end on, behind what the client has said.
func (u *up) hangUp() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.server != nil {
		closeWrite(u.server)
	}
}

// take gives the server a piece, or keeps it, or waits until it can do one of
// them.
func (u *up) take(p piece) {
	for !u.over {
		switch {
		case u.server != nil:
			if u.send(p) {
				return
			}
		case u.mid: // its beginning went to a server that has gone
			u.torn = true
			return
		case !p.long && u.keep(p.b):
			return
		default:
			u.room.Wait()
		}
	}
}

// send is false where the piece has to be given to another server.
func (u *up) send(p piece) bool {
	n, err := u.server.Write(p.b)
	if err != nil {
		// It reads no more: what it still says is bounded.
		u.server.SetReadDeadline(time.Now().Add(lastReadTime))
	}
	if p.long {
		return u.sentLong(p, err)
	}
	sent := 0
	frames(p.b, func(f frame, all []byte) {
		if sent+len(all) <= n {
			sent += len(all)
			u.passed(f)
		}
	})
	if err != nil {
		// A server that has not got all of a frame can have done nothing
		// with it.
		u.queue = append(u.queue, p.b[sent:]...)
		u.lose()
	}
	return true
}

// sentLong is send of a piece of a long frame. Its first can be sent again.
func (u *up) sentLong(p piece, err error) bool {
	if err != nil {
		u.lose()
		return !p.head
	}
	if f, ok := parse(p.b); p.head && ok {
		u.passed(f)
	}
	u.mid = u.in.midFrame()
	return true
}

// passed notes a frame that the server has got.
func (u *up) passed(f frame) {
	switch {
	case f.op() == opClose:
		u.closing = true
	case !f.control():
		u.inside = !f.last()
	}
}

// keep is for frames that come while there is no server. It is false where they
// have to wait.
func (u *up) keep(b []byte) bool {
	if len(u.queue) > 0 && len(u.queue)+len(b) > u.limit {
		return false
	}
	frames(b, func(f frame, all []byte) {
		switch f.op() {
		case opPing:
			u.ping = f.payload(all)
			u.notify()
		case opPong: // to a Ping of a server that has gone
		case opClose:
			u.closing = true
			u.notify()
		default:
			u.queue = append(u.queue, all...)
		}
	})
	return true
}

// notify has the socket look at ping and bye.
func (u *up) notify() {
	select {
	case u.pinged <- struct{}{}:
	default:
	}
}

// lose notes that there is no server any more.
func (u *up) lose() {
	u.server = nil
	u.torn = u.torn || u.inside || u.mid
}

// detach takes the server away. Its Write must not block any more.
func (u *up) detach() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.server != nil {
		u.lose()
	}
}

// attach gives the client's frames to the next server, those that were kept
// first. It does not wait for that.
func (u *up) attach(server net.Conn) {
	u.mu.Lock()
	queue := u.queue
	u.queue, u.server, u.ping = nil, server, nil
	if len(queue) == 0 {
		u.mu.Unlock()
		u.room.Broadcast()
		return
	}
	u.flushes.Go(func() { // ends with the server's connection at the latest
		defer u.room.Broadcast()
		defer u.mu.Unlock()
		u.send(piece{b: queue, head: true})
	})
}

// end has what still comes thrown away.
func (u *up) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.over, u.server, u.queue = true, nil, nil
	u.room.Broadcast()
}

// state is what the other direction has to know.
type state struct {
	torn, closing bool
	ping          []byte // to be answered; given once
}

func (u *up) look() state {
	u.mu.Lock()
	defer u.mu.Unlock()
	s := state{u.torn, u.closing, u.ping}
	u.ping = nil
	return s
}
