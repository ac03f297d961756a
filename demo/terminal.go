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

// The protocol of /ws: binary messages in both directions are the terminal's bytes. A
// text message from the browser is a size, and one from the server is a status; both are
// JSON. The query has the first size of the terminal: ?rows=24&cols=80.
const (
	maxMessage   = 64 << 10         // bytes in one message from a browser
	pingInterval = 30 * time.Second // detects browsers that are gone without a close
	netTimeout   = 20 * time.Second // to write a message, or to answer a ping
	typeTimeout  = 2 * time.Second  // for the shell to read its input
)

// status is the content of the page's header.
type status struct {
	identity
	People int `json:"people"`
}

// ending is the reason for which a terminal closes, as a WebSocket close code and text.
type ending struct {
	code   websocket.StatusCode
	reason string
	lost   bool // the connection ended without a close
}

// terminal serves one browser's shell from accept to close.
func (s *server) terminal(w http.ResponseWriter, r *http.Request) {
	if !sameHost(r) {
		http.Error(w, "the request comes from another site's page", http.StatusForbidden)
		return
	}
	// The check of Accept uses Host only; sameHost replaces it.
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		s.log.Info("the upgrade to a WebSocket failed", "err", err) // Accept has answered
		return
	}
	s.terminals.Add(1)
	defer s.terminals.Done()
	c.SetReadLimit(maxMessage)
	q := r.URL.Query()
	rows, _ := strconv.Atoi(q.Get("rows")) // winsize clamps 0
	cols, _ := strconv.Atoi(q.Get("cols"))
	s.serveTerminal(r.Context(), c, r.Header.Get("Sec-WebSocket-Key"), size{rows, cols})
}

// serveTerminal connects c with the shell that a lost connection with the same handshake
// left, or with a new shell. It ends both when one of them ends or ctx is done. If the
// connection was lost and lingering is on, the shell waits for the next connection.
func (s *server) serveTerminal(ctx context.Context, c *websocket.Conn, key string, first size) {
	news, leave, ok := s.lobby.join()
	if !ok {
		_ = c.Close(websocket.StatusTryAgainLater, fmt.Sprintf("%d shells are open, which is the limit", maxShells))
		return
	}
	defer leave()
	h, sh := s.lingering.enter(key, c)
	defer s.lingering.leave(h)
	if sh == nil {
		var err error
		if sh, err = startShell(s.reaper, s.id.Session, first); err != nil {
			s.log.Error("the shell could not be started", "err", err)
			_ = c.Close(websocket.StatusInternalError, "the shell could not be started")
			return
		}
	}
	ends := make(chan ending, 3)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { ends <- output(sh, c) })
	var last ending // of input
	wg.Go(func() { last = input(sh, c); ends <- last })
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
		// After the browser's close frame, output may fail before input has returned.
		if !last.lost || !s.lingering.hand(ctx, h, sh) {
			sh.end()
		}
		return
	}
	sh.end()                          // ends output
	_ = c.Close(end.code, end.reason) // ends input; an error means that the browser has disconnected
	wg.Wait()
}

// output copies the shell's output. It returns when the shell ends: the kernel hangs up a
// terminal when its session leader exits.
func output(sh *shell, c *websocket.Conn) ending {
	buf := make([]byte, 32<<10)
	for {
		var err error
		if len(sh.unsent) == 0 {
			var n int
			n, err = sh.tty.Read(buf)
			sh.unsent = buf[:n]
		}
		if len(sh.unsent) > 0 {
			if err := write(c, websocket.MessageBinary, sh.unsent); err != nil {
				return ending{websocket.StatusGoingAway, "the browser does not read", true}
			}
			sh.unsent = nil
		}
		if err != nil { // EIO; ErrClosed if it was closed already
			return ending{code: websocket.StatusNormalClosure, reason: "the shell has ended"}
		}
	}
}

// input copies the browser's input to the shell.
func input(sh *shell, c *websocket.Conn) ending {
	for {
		kind, b, err := c.Read(context.Background()) // closing c ends this call
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
		// A program that does not read its input must not delay the next pong. Input that it
		// does not read in time is lost, as with a full line buffer.
		_ = sh.tty.SetWriteDeadline(time.Now().Add(typeTimeout))
		if _, err := sh.tty.Write(b); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return ending{code: websocket.StatusNormalClosure, reason: "the shell has ended"}
		}
	}
}

// inform sends the header's figures when they change, and a ping at intervals.
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
