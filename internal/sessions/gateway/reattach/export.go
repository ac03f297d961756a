package reattach

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"holdfast/internal/platform/linux/connfd"
	"holdfast/internal/sessions/gateway/closing"
)

// Exported is a socket that a Proxy serves no more and has not closed, between two of its
// reads. The receiver owns the descriptors.
type Exported struct {
	Client int
	Server int // -1: the socket has no server
	State  State
}

// State is the state of an exported socket, for the Proxy that serves it next.
type State struct {
	// FromClient and FromServer are bytes that were read and not passed on. They begin with a
	// frame, or in the payload of a long frame of which FromClientRest or FromServerRest
	// bytes were not passed on.
	FromClient     []byte `json:"from_client,omitempty"`
	FromServer     []byte `json:"from_server,omitempty"`
	FromClientRest uint64 `json:"from_client_rest,omitempty"`
	FromServerRest uint64 `json:"from_server_rest,omitempty"`
	// ToClient and ToServer are bytes that were passed on, and that the other side has not
	// accepted yet. They may begin within a frame.
	ToClient []byte `json:"to_client,omitempty"`
	ToServer []byte `json:"to_server,omitempty"`

	// The next fields are those of socket and up.
	Inside    bool   `json:"inside,omitempty"`
	CloseSent bool   `json:"close_sent,omitempty"`
	UpInside  bool   `json:"up_inside,omitempty"`
	Mid       bool   `json:"mid,omitempty"`
	Torn      bool   `json:"torn,omitempty"`
	Closing   bool   `json:"closing,omitempty"`
	Queue     []byte `json:"queue,omitempty"`
	Ping      []byte `json:"ping,omitempty"`
	PingAt    int    `json:"ping_at,omitempty"`
	Close     []byte `json:"close,omitempty"`
}

// Open returns the connections of an exported socket; server is nil if it has none. It takes
// the descriptors over, also if it fails.
func (e Exported) Open() (client, server net.Conn, err error) {
	client, err = connfd.Open(e.Client)
	if e.Server < 0 || err != nil {
		connfd.Conn{FDs: []int{e.Server}}.Close() // it is -1, or not needed
		return client, nil, err
	}
	server, err = connfd.Open(e.Server)
	if err != nil {
		client.Close()
	}
	return client, server, err
}

// exports says when sockets are exported.
type exports struct {
	begin chan struct{} // closed when the sockets are to be exported

	mu      sync.Mutex
	begun   bool
	sockets sync.WaitGroup // those that can be exported
}

// enter counts a socket. It returns false if Export was called.
func (e *exports) enter() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.begun {
		e.sockets.Add(1)
	}
	return !e.begun
}

// Export calls the Export function of each socket that has one, instead of serving it to its
// end. It returns when all these calls and their Done have returned, or the sockets have
// ended. From now on Add refuses sockets with an Export function. The Proxy is open.
func (p *Proxy) Export() {
	e := &p.exports
	e.mu.Lock()
	if !e.begun {
		e.begun = true
		close(e.begin)
	}
	e.mu.Unlock()
	e.sockets.Wait()
}

// exportable reports whether the socket can be exported. Another gateway that keeps the client's
// connection connects again itself.
func (s Spec) exportable() bool {
	_, plain := s.Client.(*net.TCPConn)
	return s.Export != nil && plain && !s.PeerForward
}

// past is a deadline that ends reads and writes at once.
var past = time.Unix(1, 0)

// interrupt makes both directions stop, so that the socket can be exported. A server on another
// node cannot be passed on. Its connection ends after the client's last bytes.
func (s *socket) interrupt(server Server) {
	end := past
	if !s.exportsServer(server) {
		end = time.Now().Add(lastReadTime)
	}
	s.up.withServer.Store(end == past)
	s.spec.Client.SetWriteDeadline(end)
	server.Conn.SetDeadline(end)
	s.up.interrupt()
	if end != past {
		closing.Write(server.Conn)
	}
}

// interrupt stops the direction from the client, and waits until it has stopped. The server's
// connection, if there is one, has a deadline for writes.
func (u *up) interrupt() {
	u.exporting.Store(true)
	u.client.SetReadDeadline(past)
	u.mu.Lock()
	u.room.Broadcast()
	u.mu.Unlock()
	u.wait()
}

// exportsServer reports whether the connection to the server is exported.
func (s *socket) exportsServer(server Server) bool {
	_, plain := server.Conn.(*net.TCPConn)
	return plain && !server.Far
}

func (s *socket) isExporting() bool { return s.exporting != nil && closing.Closed(s.exporting) }

// interrupted reports whether err is that of a read or write which interrupt has ended.
func (s *socket) interrupted(err error) bool {
	return s.isExporting() && errors.Is(err, os.ErrDeadlineExceeded)
}

// export passes the socket on, with its server if that has a Conn. rest and long are what
// its reader has left. Both directions have stopped.
func (s *socket) export(server Server, rest []byte, long uint64) {
	e := Exported{Server: -1, State: State{ToClient: s.unsent, FromServer: rest, FromServerRest: long, Inside: s.inside, CloseSent: s.closeSent}}
	s.up.export(&e.State)
	var noServer, noClient error
	if server.Conn != nil {
		e.Server, noServer = connfd.Take(server.Conn.(*net.TCPConn)) // see exportsServer
		server.end()
	}
	e.Client, noClient = connfd.Take(s.spec.Client.(*net.TCPConn)) // see exportable
	if noServer != nil || noClient != nil {                        // the process may open no more files
		connfd.Conn{FDs: []int{e.Client, e.Server}}.Close()
		return
	}
	s.spec.Export(e)
}

// export adds the state of the direction from the client. Its goroutine and its flushes have
// ended.
func (u *up) export(to *State) {
	u.mu.Lock()
	defer u.mu.Unlock()
	to.FromClient, to.FromClientRest = u.in.ahead, u.in.rest
	to.ToServer = u.unsent
	to.UpInside, to.Mid, to.Torn, to.Closing = u.inside, u.mid, u.torn, u.closing
	to.Queue, to.Ping, to.PingAt, to.Close = u.queue, u.ping, u.pingAt, u.close
}

// restore continues with the state of an exported socket.
func (u *up) restore(from *State) {
	u.in.ahead, u.in.rest = from.FromClient, from.FromClientRest
	u.unsent = from.ToServer
	u.inside, u.mid, u.torn, u.closing = from.UpInside, from.Mid, from.Torn, from.Closing
	u.queue, u.ping, u.pingAt, u.close = from.Queue, from.Ping, min(max(0, from.PingAt), len(from.Queue)), from.Close
	if len(u.queue) > 0 {
		notify(u.data)
	}
	if u.ping != nil || u.close != nil {
		notify(u.pinged)
	}
}

// leftover returns a copy of the bytes that were read and not returned.
func (r *reader) leftover() []byte {
	var buffered []byte
	if r.to > r.from {
		buffered = r.buf()[r.from:r.to]
	}
	return append(append([]byte(nil), buffered...), r.ahead...)
}

// unread takes the last piece back, which was not passed on.
func (r *reader) unread(p piece) {
	r.from -= len(p.b)
	switch {
	case p.long && p.head:
		r.rest = 0
	case p.long:
		r.rest += uint64(len(p.b))
	}
}
