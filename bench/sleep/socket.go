package sleep

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/coder/websocket"

	"holdfast"
)

// echoTime is how long an echo may take before its message counts as lost.
const echoTime = 30 * time.Second

// socket is a client's WebSocket. One goroutine uses it.
type socket struct {
	ws     *websocket.Conn
	sent   int64
	echoes chan int64 // the numbers that come back
	seen   int64
	wrong  int // messages that were lost, doubled or out of order
}

// dial opens a socket to a session, which lives until ctx is done.
func dial(dialing, ctx context.Context, gateway string, key holdfast.SessionKey) (*socket, error) {
	ws, _, err := websocket.Dial(dialing, "ws://"+gateway+"/s/"+string(key)+"/ws", nil)
	if err != nil {
		return nil, fmt.Errorf("open a WebSocket: %w", err)
	}
	s := &socket{ws: ws, echoes: make(chan int64, 16)}
	go s.read(ctx)
	return s, nil
}

func (s *socket) read(ctx context.Context) {
	defer close(s.echoes)
	for {
		_, text, err := s.ws.Read(ctx)
		if err != nil {
			return
		}
		n, _ := strconv.ParseInt(string(text), 10, 64) // 0 is none that was sent
		s.echoes <- n
	}
}

// say sends the next number.
func (s *socket) say(ctx context.Context) error {
	s.sent++
	return s.ws.Write(ctx, websocket.MessageText, strconv.AppendInt(nil, s.sent, 10))
}

// await waits until the last number has come back.
func (s *socket) await(ctx context.Context) error {
	late := time.NewTimer(echoTime)
	defer late.Stop()
	for s.seen < s.sent {
		select {
		case n, open := <-s.echoes:
			if !open {
				return fmt.Errorf("a WebSocket has ended after %d of %d echoes", s.seen, s.sent)
			}
			if n != s.seen+1 {
				s.wrong++
			}
			s.seen++
		case <-late.C:
			return fmt.Errorf("message %d has no echo after %v", s.seen+1, echoTime)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// end closes the socket and returns the number of wrong messages, those included that came
// without having been sent.
func (s *socket) end() int {
	_ = s.ws.CloseNow() // it may be closed
	for range s.echoes {
		s.wrong++
	}
	return s.wrong
}
