package relay

import (
	"sync/atomic"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/sessions/gateway/frame"
)

// session is a session that sleeps until data arrives.
type session struct {
	asleep atomic.Bool
	data   atomic.Int32
}

func (*session) ByData(bool) {}

func (*session) Suspending() <-chan struct{} { return nil }

func (s *session) Data(by holdfast.WakeReason) bool {
	if by == holdfast.WokenByWebSocket {
		s.asleep.Store(false)
		s.data.Add(1)
	}
	return true
}

func (s *session) Control() bool { return !s.asleep.Load() }

// clientFrame returns a frame as a client sends it, with the key 0.
func clientFrame(op byte, payload string) []byte {
	return append([]byte{0x80 | op, 0x80 | byte(len(payload)), 0, 0, 0, 0}, payload...)
}

func TestAnswersPingsOfASleepingSession(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string) {
		r, _ := startRelay(t)
		a := &session{}
		e := add(t, r, kind, func(s *Spec) { s.WebSocket, s.Activity, s.Reason = true, a, holdfast.WokenByWebSocket })
		ping, data := clientFrame(frame.Ping, "you?"), clientFrame(frame.Text, "hello")

		write(t, e.client, ping) // it is awake, and answers itself
		readFull(t, e.upstream, ping)
		write(t, e.upstream, serverFrame(frame.Pong, []byte("you?")))
		readFull(t, e.client, serverFrame(frame.Pong, []byte("you?")))
		if n := a.data.Load(); n != 0 {
			t.Errorf("a Ping and its Pong are data (%d)", n)
		}
		a.asleep.Store(true)
		for range 3 {
			write(t, e.client, append(clientFrame(frame.Pong, ""), ping...))
			readFull(t, e.client, serverFrame(frame.Pong, []byte("you?")))
		}
		if !a.asleep.Load() {
			t.Error("a Ping has woken it")
		}
		write(t, e.client, data[:3])
		write(t, e.client, append(data[3:], ping...))
		readFull(t, e.upstream, append(data, ping...)) // nothing came before
		if a.asleep.Load() {
			t.Error("data has not woken it")
		}

		// The server has stopped in the middle of a frame: no Pong may be sent.
		write(t, e.upstream, hello[:3])
		readFull(t, e.client, hello[:3])
		a.asleep.Store(true)
		write(t, e.client, ping)
		readFull(t, e.upstream, ping)
		if a.asleep.Load() {
			t.Error("it sleeps, and nothing can answer")
		}
		write(t, e.upstream, hello[3:])
		readFull(t, e.client, hello[3:])
		a.asleep.Store(true)
		write(t, e.upstream, hello) // sent before it fell asleep
		readFull(t, e.client, hello)
		if a.asleep.Load() {
			t.Error("data of the server has not woken it")
		}
	})
}

// Every byte of another protocol is data.
func TestStreamWakes(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string) {
		r, _ := startRelay(t)
		a := &session{}
		a.asleep.Store(true)
		e := add(t, r, kind, func(s *Spec) { s.Activity, s.Reason = a, holdfast.WokenByWebSocket })
		ping := clientFrame(frame.Ping, "")
		write(t, e.client, ping)
		readFull(t, e.upstream, ping)
		if a.asleep.Load() || a.data.Load() == 0 {
			t.Error("it sleeps")
		}
		e.client.SetDeadline(time.Now().Add(patience))
	})
}
