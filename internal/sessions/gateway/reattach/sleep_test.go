package reattach

import (
	"bytes"
	"sync/atomic"
	"testing"

	"holdfast"
	"holdfast/internal/sessions/gateway/frame"
)

// session is a session that sleeps until data arrives.
type session struct {
	asleep     atomic.Bool
	data       atomic.Int32
	suspending atomic.Bool
	dead       chan struct{}
}

func (*session) ByData(bool) {}
func (s *session) Data(holdfast.WakeReason) bool {
	s.asleep.Store(false)
	s.data.Add(1)
	return !s.suspending.Load()
}
func (s *session) Suspending() <-chan struct{} {
	if !s.suspending.Load() {
		return nil
	}
	return s.dead
}
func (s *session) Control() bool { return !s.asleep.Load() }

func TestAnswersPingsOfASleepingSession(t *testing.T) {
	a := &session{}
	b := start(t, func(s *Spec) { s.Server.Activity = a })
	ping := clientFrame(frame.Fin|frame.Ping, "you?")
	send(t, b.conn, ping)
	expectFrame(t, b.server, frame.Fin|frame.Ping, "you?")
	send(t, b.server, frame.Server(frame.Pong, []byte("you?")))
	expectFrame(t, b.client, frame.Fin|frame.Pong, "you?")
	if n := a.data.Load(); n != 0 {
		t.Errorf("a Ping and its Pong are data (%d)", n)
	}
	a.asleep.Store(true)
	for range 3 {
		send(t, b.conn, ping)
		expectFrame(t, b.client, frame.Fin|frame.Pong, "you?")
	}
	if !a.asleep.Load() {
		t.Error("a Ping has woken it")
	}
	send(t, b.conn, text("hello"))
	expectFrame(t, b.server, frame.Fin|frame.Text, "hello") // no Ping came before
	if a.asleep.Load() {
		t.Error("data has not woken it")
	}

	// In the middle of a long frame no Pong may be sent.
	long := append([]byte{frame.Fin | frame.Text, 127, 0, 0, 0, 0, 0, 2, 0, 0}, bytes.Repeat([]byte{'x'}, 2<<16)...)
	send(t, b.server, long[:100])
	if _, err := b.client.Peek(100); err != nil {
		t.Fatal(err)
	}
	a.asleep.Store(true)
	send(t, b.conn, ping)
	expectFrame(t, b.server, frame.Fin|frame.Ping, "you?")
	if a.asleep.Load() {
		t.Error("it sleeps, and nothing can answer")
	}
	send(t, b.server, long[100:])
	expectFrame(t, b.client, frame.Fin|frame.Text, string(long[10:]))
	b.conn.Close()
	b.server.Close()
	b.expectDone()
}
