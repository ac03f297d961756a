package main

import (
	"context"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// lingerEnv says how long a shell waits for its browser when the connection was
// lost and not closed; nothing: it ends at once.
const lingerEnv = "DEMO_LINGER"

// takeTime is what a connection may take to let go of its shell.
const takeTime = 2 * time.Second

// lingering has connections that were lost leave their shells to those that come
// with the same handshake: a gateway that keeps a browser's WebSocket while its
// session moves asks for the same upgrade again, with the same Sec-WebSocket-Key,
// of which no two browsers have the same.
type lingering struct {
	time time.Duration // 0: nothing lingers

	mu sync.Mutex
	by map[string]*holder // by the handshake's key
}

// holder is a connection with a shell.
type holder struct {
	key  string
	c    *websocket.Conn
	next chan *shell // it is left here
}

// enter notes a connection, and returns the shell of the one before it with the same
// handshake, nil where there is none.
func (l *lingering) enter(key string, c *websocket.Conn) (*holder, *shell) {
	h := &holder{key: key, c: c, next: make(chan *shell)}
	if l.time == 0 || key == "" {
		return h, nil
	}
	l.mu.Lock()
	before := l.by[key]
	l.by[key] = h
	l.mu.Unlock()
	if before == nil {
		return h, nil
	}
	_ = before.c.CloseNow() // it may not have noticed yet
	select {
	case sh := <-before.next:
		return h, sh
	case <-time.After(takeTime):
		return h, nil
	}
}

// leave forgets a connection.
func (l *lingering) leave(h *holder) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.by[h.key] == h {
		delete(l.by, h.key)
	}
}

// hand leaves the shell of a lost connection to the next one. It is false where none
// has come in time.
func (l *lingering) hand(ctx context.Context, h *holder, sh *shell) bool {
	if l.time == 0 {
		return false
	}
	t := time.NewTimer(l.time)
	defer t.Stop()
	select {
	case h.next <- sh:
		return true
	case <-sh.gone:
	case <-t.C:
	case <-ctx.Done():
	}
	return false
}
