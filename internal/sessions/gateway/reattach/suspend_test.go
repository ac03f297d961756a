package reattach

import (
	"context"
	"io"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/sessions/gateway/frame"
)

// suspension is an Awake whose session is suspended until it is resumed.
type suspension struct {
	begun   chan struct{} // has an element for each wait
	ended   chan struct{} // and for each one that has ended
	resumed chan struct{} // has an element when the session is resumed
}

func newSuspension() *suspension {
	return &suspension{begun: make(chan struct{}, 8), ended: make(chan struct{}, 8), resumed: make(chan struct{}, 1)}
}

func (x *suspension) awake() (<-chan struct{}, func()) {
	x.begun <- struct{}{}
	return x.resumed, func() { x.ended <- struct{}{} }
}

// While its session is suspended, the socket answers Pings and looks for no server. Data of the
// client makes it look for one, and arrives there once and in order.
func TestWaitsWhileTheSessionIsSuspended(t *testing.T) {
	x := newSuspension()
	b := start(t, func(s *Spec) { s.Awake, s.Policy.Tell, s.Policy.Time = x.awake, "resumed", 2*time.Second })
	for range 3 {
		b.leave()
		<-x.begun
		for range 2 {
			send(t, b.conn, clientFrame(frame.Fin|frame.Ping, "there?"))
			expectFrame(t, b.client, frame.Fin|frame.Pong, "there?")
		}
		select {
		case <-b.asked:
			t.Fatal("it looks for a server, and nothing has woken the session")
		case <-x.ended:
			t.Fatal("a Ping is data")
		default:
		}
		send(t, b.conn, text("one"))
		<-x.ended
		<-b.asked
		<-b.hurry
		send(t, b.conn, text("two"))
		b.next <- b.newServer()
		expectFrame(t, b.client, frame.Fin|frame.Text, "resumed")
		expectFrame(t, b.server, frame.Fin|frame.Text, "one")
		expectFrame(t, b.server, frame.Fin|frame.Text, "two")
		send(t, b.server, frame.Server(frame.Text, []byte("uno")))
		expectFrame(t, b.client, frame.Fin|frame.Text, "uno")
	}
	// Another client has woken it.
	b.leave()
	<-x.begun
	x.resumed <- struct{}{}
	<-b.asked
	<-x.ended
	select {
	case <-b.hurry:
		t.Error("there is data for the server")
	default:
	}
	b.next <- b.newServer()
	expectFrame(t, b.client, frame.Fin|frame.Text, "resumed")
	send(t, b.conn, text("three"))
	expectFrame(t, b.server, frame.Fin|frame.Text, "three")
	// The wait for a server is limited, that for the session is not.
	b.leave()
	<-x.begun
	time.Sleep(2200 * time.Millisecond)
	send(t, b.conn, text("four"))
	<-b.asked
	b.next <- b.newServer()
	expectFrame(t, b.client, frame.Fin|frame.Text, "resumed")
	expectFrame(t, b.server, frame.Fin|frame.Text, "four")
	// The client leaves.
	b.leave()
	<-x.begun
	b.conn.Close()
	b.expectDone(Kept, Kept, Kept, Kept, Kept, Client)
}

// A client that closes its WebSocket wakes nothing.
func TestCloseWhileSuspended(t *testing.T) {
	x := newSuspension()
	b := start(t, func(s *Spec) { s.Awake = x.awake })
	b.leave()
	<-x.begun
	send(t, b.conn, clientFrame(frame.Fin|frame.Close, "\x03\xe8"))
	expectFrame(t, b.client, frame.Fin|frame.Close, "\x03\xe8")
	b.conn.Close()
	b.expectDone(Client)
	if len(b.asked) > 0 {
		t.Error("it has looked for a server")
	}
}

// Data that comes when the session is being suspended does not go to the server that may not
// read it. What that server still sends is delivered.
func TestDataAtTheSuspension(t *testing.T) {
	for _, forwarded := range []bool{false, true} {
		x, a := newSuspension(), &session{dead: make(chan struct{})}
		b := start(t, func(s *Spec) { s.Awake, s.Server.Activity, s.PeerForward = x.awake, a, forwarded })
		send(t, b.conn, text("before"))
		expectFrame(t, b.server, frame.Fin|frame.Text, "before")
		a.suspending.Store(true)
		send(t, b.conn, text("between"))
		send(t, b.server, frame.Server(frame.Text, []byte("last")))
		expectFrame(t, b.client, frame.Fin|frame.Text, "last")
		old := b.server
		close(b.left)
		b.left = make(chan struct{})
		send(t, old, frame.Server(frame.Text, []byte("very last")))
		expectFrame(t, b.client, frame.Fin|frame.Text, "very last")
		send(t, b.conn, text("after"))
		time.Sleep(2 * lastReadTime)
		send(t, old, frame.Server(frame.Text, []byte("checkpoint")))
		expectFrame(t, b.client, frame.Fin|frame.Text, "checkpoint")
		close(a.dead)
		old.SetReadDeadline(time.Now().Add(patience))
		if n, err := old.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("the server that is suspended read %d bytes, %v", n, err)
		}
		<-b.asked
		<-b.hurry
		b.next <- b.newServer()
		expectFrame(t, b.server, frame.Fin|frame.Text, "between")
		expectFrame(t, b.server, frame.Fin|frame.Text, "after")
		b.conn.Close()
		b.server.Close()
		if forwarded {
			b.expectDone() // the other gateway counts it
		} else {
			b.expectDone(Kept)
		}
	}
}

// The connection of another gateway ends without a mark or a Close frame, if the session is
// not served here any more.
func TestSuspendedAndResumedElsewhere(t *testing.T) {
	x := newSuspension()
	b := start(t, func(s *Spec) { s.Awake, s.PeerForward = x.awake, true })
	b.leave()
	<-x.begun
	x.resumed <- struct{}{}
	<-b.asked
	b.next <- Server{} // an error
	if rest, err := io.ReadAll(b.client); err != nil || len(rest) > 0 {
		t.Errorf("%q, %v", rest, err)
	}
	b.conn.Close()
	b.expectDone()
}

// The connection to another gateway stays while that one keeps it for a suspended session, and
// ends if another node serves the session.
func TestOtherGatewayKeepsIt(t *testing.T) {
	x, renewed := newSuspension(), make(chan (<-chan struct{}))
	b := start(t, func(s *Spec) {
		s.Awake = x.awake
		s.Server.Far = true
		s.Server.Renew = func(ctx context.Context) (<-chan struct{}, bool) {
			select {
			case left := <-renewed:
				return left, left != nil
			case <-ctx.Done():
				return nil, false
			}
		}
	})
	exchange := func() {
		t.Helper()
		send(t, b.conn, text("to"))
		expectFrame(t, b.server, frame.Fin|frame.Text, "to")
		send(t, b.server, frame.Server(frame.Text, []byte("from")))
		expectFrame(t, b.client, frame.Fin|frame.Text, "from")
	}
	close(b.left)
	for range 2 {
		time.Sleep(2 * lastReadTime)
		exchange()
		left := make(chan struct{})
		renewed <- left
		exchange()
		close(left)
	}
	renewed <- nil
	<-x.begun // after renewTime
	b.conn.Close()
	b.expectDone(Client)
}

var _ holdfast.Activity = (*session)(nil)
