package reattach

import (
	"context"
	"time"

	"holdfast/internal/sessions/gateway/closing"
	"holdfast/internal/sessions/gateway/frame"
)

// found is the result of the search for the next server.
type found struct {
	server Server
	err    error
}

// handover keeps the client connected while its session has no server. It
// returns the next server with the verdict lost, or the verdict that ends the
// connection.
func (s *socket) handover() (Server, verdict) {
	start := time.Now()
	next, out := s.await()
	if out == Kept && !s.goOn() {
		next.end()
		out = Client
	}
	s.tell(out, time.Since(start))
	switch out {
	case Kept:
		return next, lost
	case Client:
		return Server{}, withoutClose
	}
	return Server{}, withClose
}

// await answers the client until the next server is connected.
func (s *socket) await() (Server, Outcome) {
	ctx, cancel := context.WithTimeout(s.stop, s.spec.Policy.Time)
	defer cancel()
	search := make(chan found)
	go func() {
		server, err := s.spec.Next(ctx)
		search <- found{server, err}
	}()
	for out := Kept; out == Kept; {
		select {
		case f := <-search:
			switch {
			case f.err == nil:
				return f.server, Kept
			case s.stop.Err() != nil:
				return Server{}, Ended
			}
			return Server{}, Late
		case <-s.up.pinged:
			if !s.answer() {
				out = Client
			}
		case <-s.up.gone:
			out = Client
		}
	}
	cancel()
	if f := <-search; f.err == nil {
		f.server.end()
	}
	return Server{}, Client
}

// answer answers the client's last Ping. It returns false if the client has
// sent a Close frame or accepts nothing.
func (s *socket) answer() bool {
	u := s.up.look()
	if u.closing {
		s.say(frame.Closing(closing.Restart))
		s.said = true
		return false
	}
	return u.ping == nil || s.say(frame.Server(frame.Pong, u.ping))
}

// goOn tells the client, if the policy says so, that there is a server again.
func (s *socket) goOn() bool {
	p := s.spec.Policy
	switch {
	case p.Tell == "":
		return true
	case p.Ping:
		return s.say(frame.Server(frame.Ping, []byte(p.Tell)))
	}
	return s.say(frame.Server(frame.Text, []byte(p.Tell)))
}

// say sends the client a frame of the gateway.
func (s *socket) say(b []byte) bool {
	s.spec.Client.SetWriteDeadline(time.Now().Add(writeWait))
	_, err := s.spec.Client.Write(b)
	s.spec.Client.SetWriteDeadline(time.Time{})
	return err == nil
}
