package gateway

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast"
	"holdfast/internal/sessions/gateway/closing"
	"holdfast/internal/sessions/gateway/frame"
	"holdfast/test/lab/labtest"
)

// TestAutobahn sends what Autobahn's fuzzing client and fuzzing server send, by every way
// through the gateway and directly, to an end that applies RFC 6455 strictly. That end
// receives and answers the same octets, and the connection has the same end. Sockets that
// are kept move to another server within each case. Without -long large payloads are
// smaller, and fewer ways are used.
func TestAutobahn(t *testing.T) {
	scale, count := 256, 2
	if labtest.Long() {
		scale, count = 1, 20
	}
	r := newAutobahnRig(t)
	cases := autobahnCases(scale, count)
	if len(cases) != 517 {
		t.Errorf("%d cases", len(cases))
	}
	for i, way := range r.ways() {
		if way.long && !labtest.Long() {
			continue
		}
		cases := cases
		if !labtest.Long() && way.act == nil {
			cases = alternate(cases, i%2) // the fuzzing server has those that the fuzzing client leaves out
		}
		t.Run(way.name, func(t *testing.T) { r.runAll(t, way, cases) })
	}
}

// alternate returns every second case, from a first one.
func alternate(cases []*autobahnCase, first int) (half []*autobahnCase) {
	for i := first; i < len(cases); i += 2 {
		half = append(half, cases[i])
	}
	return half
}

// autobahnWay is a way to the session's server.
type autobahnWay struct {
	name    string
	long    bool
	address string // "" is the server itself
	tls     bool
	keep    bool
	act     func(*autobahnRun, *received) // to move the session once, nil for never
	differs string                        // a case in which the connection ends otherwise
	sleeps  bool                          // act leaves the session without a server for a while
	fuzzing bool                          // the server sends the case, and the client is strict
}

// autobahnRig has a server, and gateways in front of it.
type autobahnRig struct {
	t                    *testing.T
	server               net.Listener
	group                sync.WaitGroup // of the server
	plain, secure, first *fixture

	mu   sync.Mutex
	runs map[string]*autobahnRun
}

// autobahnRun is one case by one way, with a session of its own.
type autobahnRun struct {
	id    string
	c     *autobahnCase
	way   autobahnWay
	serve func(r *autobahnRun, c net.Conn, in *bufio.Reader)

	mu      sync.Mutex
	epoch   holdfast.Epoch
	left    chan struct{}
	conn    net.Conn      // of the server
	arrived chan struct{} // one for each connection to the server
	open    chan struct{} // closed when the session may have a next server
	asked   chan struct{} // has an element when the gateway asks for it
	result  chan []byte   // what the fuzzing server received
}

func newAutobahnRig(t *testing.T) *autobahnRig {
	r := &autobahnRig{t: t, runs: map[string]*autobahnRun{}}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.server = ln
	r.group.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			r.group.Go(func() { r.accept(c) })
		}
	})
	t.Cleanup(func() { ln.Close(); r.group.Wait() })
	r.plain, r.secure = start(t, nil, nil), start(t, nil, secure(t, nil))
	for _, f := range []*fixture{r.plain, r.secure} {
		f.sessions.set(r.acquire)
	}
	fleet := newFleet(t)
	owner, keeper := fleet.join("owner", nil, nil), fleet.join("keeper", nil, nil)
	for _, m := range []*member{owner, keeper} {
		m.local.set(func(l *fakeLocal) { l.address, l.refuse = ln.Addr().String(), nil })
	}
	keeper.local.set(func(l *fakeLocal) { l.keep = &holdfast.KeepSockets{Time: patience, Buffer: 64 << 10} })
	r.first = fleet.join("first", nil, nil).fixture
	r.first.sessions.set(func(_ context.Context, key holdfast.SessionKey) (holdfast.Route, error) {
		if run := r.runOf(string(key)); run != nil && run.way.keep {
			return keeper.route(key, nil), nil
		}
		return owner.route(key, nil), nil
	})
	return r
}

func (r *autobahnRig) runOf(id string) *autobahnRun {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.runs[id]
}

// accept answers the handshake of one connection to the server.
func (r *autobahnRig) accept(c net.Conn) {
	in := bufio.NewReader(c)
	req, err := http.ReadRequest(in)
	if err != nil {
		c.Close()
		return
	}
	run := r.runOf(req.Header.Get("Run"))
	answer := "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
	if d := run.c.deflate; d != nil {
		if got := req.Header.Get("Sec-WebSocket-Extensions"); got != d.offer {
			r.t.Errorf("%s: the server is offered %q", run.c.name, got)
		}
		answer += "Sec-WebSocket-Extensions: " + d.answer + "\r\n"
	}
	io.WriteString(c, answer+"\r\n")
	run.mu.Lock()
	run.conn = c
	run.mu.Unlock()
	run.arrived <- struct{}{}
	run.serve(run, c, in)
}

// acquire is that of the sessions of all gateways.
func (r *autobahnRig) acquire(ctx context.Context, key holdfast.SessionKey) (holdfast.Route, error) {
	run := r.runOf(string(key))
	if run == nil {
		return holdfast.Route{}, holdfast.ErrNotFound
	}
	run.mu.Lock()
	route := holdfast.Route{Key: key, Address: r.server.Addr().String(), Epoch: run.epoch, Left: run.left}
	run.mu.Unlock()
	if run.way.keep {
		route.Keep = &holdfast.KeepSockets{Time: patience, Buffer: 64 << 10}
		if run.way.act != nil && !run.way.sleeps {
			route.Keep.Tell = autobahnMoved
		}
	}
	if route.Epoch > 1 {
		run.asked <- struct{}{}
		select {
		case <-run.open:
		case <-ctx.Done():
			return route, ctx.Err()
		}
	}
	return route, nil
}

// leave ends the session's server. The session has none until run.open is closed.
func (run *autobahnRun) leave() {
	run.mu.Lock()
	defer run.mu.Unlock()
	close(run.left)
	run.left = make(chan struct{})
	run.epoch++
	run.conn.Close()
}

// autobahnMoved tells the client that the session has its next server.
const autobahnMoved = "moved"

// move brings the session to its next server, and removes what the gateway adds.
func (run *autobahnRun) move(got *received) {
	told := frame.Server(frame.Text, []byte(autobahnMoved))
	got.mu.Lock()
	n := len(got.b) // before the move, after which the gateway tells the client at any moment
	got.mu.Unlock()
	close(run.open)
	run.leave()
	got.await(n + len(told))
	got.mu.Lock()
	defer got.mu.Unlock()
	got.b = bytes.Replace(got.b, told, nil, 1)
}

// sleep ends the session, and boots it again while the client sends the rest.
func (run *autobahnRun) sleep(*received) {
	run.leave()
	<-run.asked
	time.AfterFunc(20*time.Millisecond, func() { close(run.open) })
}

func (r *autobahnRig) ways() []autobahnWay {
	plain, secure, first := r.plain.addr, r.secure.addr, r.first.addr
	move, sleep := (*autobahnRun).move, (*autobahnRun).sleep
	return []autobahnWay{
		{name: "relay", address: plain},
		{name: "relay, TLS", address: secure, tls: true, long: true},
		{name: "another node", address: first, long: true},
		{name: "kept", address: plain, keep: true, long: true},
		{name: "kept, TLS", address: secure, tls: true, keep: true, long: true},
		{name: "kept, another node", address: first, keep: true, long: true},
		{name: "kept and moved", address: plain, keep: true, act: move},
		{name: "kept and moved, TLS", address: secure, tls: true, keep: true, act: move, long: true},
		{name: "kept and slept", address: plain, keep: true, act: sleep, sleeps: true, long: true},
		{name: "fuzzing server, relay", address: plain, fuzzing: true},
		{name: "fuzzing server, relay, TLS", address: secure, tls: true, fuzzing: true, long: true},
		{name: "fuzzing server, another node", address: first, fuzzing: true, long: true},
		{name: "fuzzing server, kept", address: plain, keep: true, fuzzing: true, long: true},
		// Between nodes opcode 11 marks the server's end, so the connection ends before the
		// client fails it.
		{name: "fuzzing server, kept, another node", address: first, keep: true, fuzzing: true, long: true, differs: "4.2.1"},
	}
}

// runAll runs all cases by one way and directly.
func (r *autobahnRig) runAll(t *testing.T, way autobahnWay, cases []*autobahnCase) {
	var mu sync.Mutex
	total, passed, without := 0, 0, 0
	var g errgroup.Group
	g.SetLimit(32)
	for _, c := range cases {
		g.Go(func() error {
			if way.keep && c.deflate != nil || way.act != nil && c.boundary(way) < 0 {
				mu.Lock()
				without++
				mu.Unlock()
				return nil
			}
			direct, err := r.directly(c, way.fuzzing)
			if err != nil {
				return fmt.Errorf("%s, directly: %w", c.name, err)
			}
			got, err := r.run(c, way)
			mu.Lock()
			defer mu.Unlock()
			total++
			if err == nil && bytes.Equal(got, direct) {
				passed++
			} else if c.name != way.differs {
				t.Errorf("%s: %v: %d octets, directly %d: %.60x, %.60x", c.name, err, len(got), len(direct), tail(got), tail(direct))
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	t.Logf("Autobahn's cases, %s: %d of %d pass, %d do not apply; %s differs", way.name, passed, total, without, cmp.Or(way.differs, "none"))
}

// directly returns what the fuzzing end of a case receives without a gateway.
func (r *autobahnRig) directly(c *autobahnCase, fuzzing bool) ([]byte, error) {
	end := 0
	if fuzzing {
		end = 1
	}
	if c.direct[end] != nil {
		return c.direct[end], nil
	}
	got, err := r.run(c, autobahnWay{fuzzing: fuzzing})
	if err == nil {
		err = c.judge(got, c.expect(!fuzzing))
	}
	if err == nil {
		c.direct[end] = got
	}
	return got, err
}

func tail(b []byte) []byte { return b[max(0, len(b)-30):] }

// peerOf returns the strict end of the case.
func (c *autobahnCase) peerOf(client bool) *strictPeer {
	p := &strictPeer{client: client}
	if c.deflate != nil {
		p.deflater = c.deflate.server()
	}
	return p
}

// expect returns what a strict end answers to each piece.
func (c *autobahnCase) expect(server bool) (all []int) {
	p, n := c.peerOf(!server), 0
	pieces, _ := c.pieces(server)
	for _, b := range pieces {
		n += len(p.feed(b))
		all = append(all, n)
	}
	return all
}

// judge checks the answer of a strict end by what the suite expects.
func (c *autobahnCase) judge(got []byte, want []int) error {
	if len(got) != want[len(want)-1] {
		return fmt.Errorf("%d octets, want %d", len(got), want[len(want)-1])
	}
	var code uint16
	var echoed int
	frame.Each(got, func(f frame.Header, all []byte) {
		if b := f.Payload(all); f.Op() == frame.Close && len(b) >= 2 {
			code = binary.BigEndian.Uint16(b)
		} else if !f.Control() {
			echoed += len(b)
		}
	})
	if code != c.code {
		return fmt.Errorf("code %d, want %d", code, c.code)
	}
	sent := 0
	for _, f := range c.frames {
		if f.first&0x08 == 0 {
			sent += len(f.payload)
		}
	}
	if c.code == 1000 && c.deflate == nil && !strings.HasPrefix(c.name, "7.1.") && echoed != sent {
		return fmt.Errorf("%d octets echoed of %d", echoed, sent)
	}
	return nil
}

// boundary returns the last piece before which the session may move and after which
// others follow. It is -1 if there is none: a gateway itself answers the control frames
// of a session that sleeps.
func (c *autobahnCase) boundary(way autobahnWay) int {
	if way.sleeps && slices.ContainsFunc(c.frames, func(f wsFrame) bool { return f.first&0x08 != 0 }) {
		return -1
	}
	p, at := c.peerOf(false), 0
	pieces, _ := c.pieces(true)
	for i, b := range pieces[:len(pieces)-1] {
		if p.idle() {
			at = i
		}
		p.feed(b)
	}
	return at
}

// run runs one case, and returns what the fuzzing end received.
func (r *autobahnRig) run(c *autobahnCase, way autobahnWay) ([]byte, error) {
	run := &autobahnRun{
		c: c, way: way, epoch: 1, left: make(chan struct{}), arrived: make(chan struct{}, 2),
		open: make(chan struct{}), asked: make(chan struct{}, 8), result: make(chan []byte, 1),
	}
	run.serve = func(_ *autobahnRun, conn net.Conn, in *bufio.Reader) { c.peerOf(false).serve(conn, in) }
	if way.fuzzing {
		run.serve = func(run *autobahnRun, conn net.Conn, in *bufio.Reader) {
			run.result <- run.play(conn, in, false)
		}
	}
	r.mu.Lock()
	run.id = fmt.Sprintf("run-%d", len(r.runs))
	r.runs[run.id] = run
	r.mu.Unlock()
	conn, in, err := r.dial(run)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	<-run.arrived
	if way.fuzzing {
		c.peerOf(true).serve(conn, in)
		select {
		case got := <-run.result:
			return got, nil
		case <-time.After(3 * patience):
			return nil, errors.New("the server does not end")
		}
	}
	return run.play(conn, in, true), nil
}

// dial opens the client's WebSocket.
func (r *autobahnRig) dial(run *autobahnRun) (conn net.Conn, in *bufio.Reader, err error) {
	address := run.way.address
	if address == "" {
		address = r.server.Addr().String()
	}
	if conn, err = net.Dial("tcp", address); err != nil {
		return nil, nil, err
	}
	if run.way.tls {
		conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
	}
	limit := 3 * patience
	if labtest.Long() {
		limit *= 20
	}
	conn.SetDeadline(time.Now().Add(limit))
	head := "GET /s/" + run.id + "/ HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" +
		"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nRun: " + run.id + "\r\n"
	if run.c.deflate != nil {
		head += "Sec-WebSocket-Extensions: " + run.c.deflate.offer + "\r\n"
	}
	io.WriteString(conn, head+"\r\n")
	in = bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err == nil && resp.StatusCode != 101 {
		err = errors.New(resp.Status)
	}
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return conn, in, nil
}

// received collects what an end receives.
type received struct {
	mu   sync.Mutex
	cond sync.Cond
	b    []byte
	err  error
}

func (g *received) read(in io.Reader) {
	buf := make([]byte, 64<<10)
	for {
		n, err := in.Read(buf)
		g.mu.Lock()
		g.b, g.err = append(g.b, buf[:n]...), err
		g.cond.Broadcast()
		g.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// await returns when n octets or the end were received.
func (g *received) await(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.b) < n && g.err == nil {
		g.cond.Wait()
	}
}

// play sends the case, and returns everything that arrives until the end.
func (run *autobahnRun) play(conn net.Conn, in io.Reader, mask bool) []byte {
	got := &received{}
	got.cond.L = &got.mu
	var reading sync.WaitGroup
	reading.Go(func() { got.read(in) })
	at := -1
	if run.way.act != nil {
		at = run.c.boundary(run.way)
	}
	pieces, wait := run.c.pieces(mask)
	want := run.c.expect(mask)
	for i, b := range pieces {
		// A kept socket passes a frame on when it is whole, so its first part has no answer.
		whole := run.c.cuts == nil || !run.way.keep
		if i > 0 && (wait[i] && whole || i == at) {
			got.await(want[i-1])
		}
		if i == at {
			run.way.act(run, got)
		}
		size := len(b)
		if run.c.chop > 0 {
			size = run.c.chop
		}
		for len(b) > 0 {
			n := min(size, len(b))
			if _, err := conn.Write(b[:n]); err != nil {
				break
			}
			b = b[n:]
		}
	}
	got.await(want[len(want)-1])
	if !mask {
		closing.Write(conn) // a server ends the connection
	}
	reading.Wait()
	conn.Close()
	return got.b
}
