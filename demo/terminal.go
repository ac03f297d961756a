package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// The protocol of /ws: binary messages are the terminal's bytes, both ways. A
// text message from the browser is a size, one from here a status; both JSON.
// The size that the shell starts with is in the query: ?rows=24&cols=80.
const (
	maxMessage   = 64 << 10         // bytes in one message from a browser
	pingInterval = 30 * time.Second // finds browsers that went without a word
	netTimeout   = 20 * time.Second // to write a message, or to answer a ping
	typeTimeout  = 2 * time.Second  // for the shell's side to take what was typed
)

// status is what the page's header shows.
type status struct {
	identity
	People int `json:"people"`
}

// ending is why a terminal closes, as a WebSocket close code and reason.
type ending struct {
	code   websocket.StatusCode
	reason string
	lost   bool // the connection ended without a close
}

// terminal serves one browser's shell from accept to close.
func (s *server) terminal(w http.ResponseWriter, r *http.Request) {
	if !sameHost(r) {
		http.Error(w, "this page is not ours", http.StatusForbidden)
		return
	}
	// Its own check knows Host only, so it is done above.
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		s.log.Info("no WebSocket", "err", err) // Accept has answered
		return
	}
	s.terminals.Add(1)
	defer s.terminals.Done()
	c.SetReadLimit(maxMessage)
	q := r.URL.Query()
	rows, _ := strconv.Atoi(q.Get("rows")) // 0 is clamped like any other
	cols, _ := strconv.Atoi(q.Get("cols"))
	s.attend(r.Context(), c, r.Header.Get("Sec-WebSocket-Key"), size{rows, cols})
}

// attend joins c to a new shell, or to that which a lost connection with the same
// handshake has left, until either ends or ctx does, and leaves neither behind; but
// a shell whose connection was lost waits for the next one, where it may.
func (s *server) attend(ctx context.Context, c *websocket.Conn, key string, first size) {
	news, leave, ok := s.lobby.join()
	if !ok {
		_ = c.Close(websocket.StatusTryAgainLater, fmt.Sprintf("%d shells are open, no more are allowed", maxShells))
		return
	}
	defer leave()
	h, sh := s.lingering.enter(key, c)
	defer s.lingering.leave(h)
	if sh == nil {
		var err error
		if sh, err = startShell(s.reaper, s.id.Session, first); err != nil {
			s.log.Error("no shell", "err", err)
			_ = c.Close(websocket.StatusInternalError, "the shell could not be started")
			return
		}
	}
	ends := make(chan ending, 3)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { ends <- output(sh, c) })
	wg.Go(func() { ends <- input(sh, c) })
	wg.Go(func() { ends <- s.inform(c, news, stop) })

	var end ending
	select {
	case end = <-ends:
	case <-ctx.Done():
		end = ending{code: websocket.StatusGoingAway, reason: "the server stops"}
	}
	close(stop)
	if end.lost && s.lingering.time > 0 {
		_ = sh.tty.SetReadDeadline(time.Unix(1, 0)) // ends output
		_ = c.CloseNow()                            // ends input
		wg.Wait()
		_ = sh.tty.SetReadDeadline(time.Time{})
		if !s.lingering.hand(ctx, h, sh) {
			sh.end()
		}
		return
	}
	sh.end()                          // ends output
	_ = c.Close(end.code, end.reason) // ends input; an error means that the browser is gone
	wg.Wait()
}

// output copies what the shell prints. It returns at the shell's end: the
// kernel hangs a terminal up when its session leader exits.
func output(sh *shell, c *websocket.Conn) ending {
	buf := make([]byte, 32<<10)
	for {
		var err error
		if len(sh.unsaid) == 0 {
			var n int
			n, err = sh.tty.Read(buf)
			sh.unsaid = buf[:n]
		}
		if len(sh.unsaid) > 0 {
			if err := write(c, websocket.MessageBinary, sh.unsaid); err != nil {
				return ending{websocket.StatusGoingAway, "the browser takes nothing", true}
			}
			sh.unsaid = nil
		}
		if err != nil { // EIO; ErrClosed if it was closed already
			return ending{code: websocket.StatusNormalClosure, reason: "the shell has ended"}
		}
	}
}

// input copies what the browser sends.
func input(sh *shell, c *websocket.Conn) ending {
	for {
		kind, b, err := c.Read(context.Background()) // ended by closing c
		if err != nil {
			return ending{websocket.StatusGoingAway, "the browser left", websocket.CloseStatus(err) == -1}
		}
		if kind == websocket.MessageText {
			var want size
			if err := json.Unmarshal(b, &want); err != nil {
				return ending{code: websocket.StatusUnsupportedData, reason: "a text message is a size"}
			}
			if err := sh.resize(want); err != nil {
				return ending{code: websocket.StatusNormalClosure, reason: "the shell has ended"}
			}
			continue
		}
		// A program that reads nothing must not keep us from reading pongs:
		// what it does not take in time is lost, as with a full line.
		_ = sh.tty.SetWriteDeadline(time.Now().Add(typeTimeout))
		if _, err := sh.tty.Write(b); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return ending{code: websocket.StatusNormalClosure, reason: "the shell has ended"}
		}
	}
}

// inform sends the header's figures when they change, and pings.
func (s *server) inform(c *websocket.Conn, news <-chan int, stop <-chan struct{}) ending {
	ping := time.NewTicker(pingInterval)
	defer ping.Stop()
	for {
		var err error
		select {
		case <-stop:
			return ending{}
		case people := <-news:
			var b []byte
			if b, err = json.Marshal(status{s.id, people}); err == nil {
				err = write(c, websocket.MessageText, b)
			}
		case <-ping.C:
			ctx, cancel := context.WithTimeout(context.Background(), netTimeout)
			err = c.Ping(ctx)
			cancel()
		}
		if err != nil {
			return ending{websocket.StatusGoingAway, "the browser does not answer", true}
		}
	}
}

func write(c *websocket.Conn, kind websocket.MessageType, b []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), netTimeout)
	defer cancel()
	return c.Write(ctx, kind, b)
}
