package main

import (
	"context"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// lingerEnv is the time for which a shell waits for its browser after a lost connection. Without
// it the shell ends at once.
const lingerEnv = "DEMO_LINGER"

// takeTime limits the time in which a connection releases its shell.
const takeTime = 2 * time.Second

// lingering passes the shell of a lost connection to the next one with the same handshake. A
// gateway that keeps a browser's WebSocket while its session moves repeats the upgrade with
// the same Sec-WebSocket-Key, which is unique to a browser's connection.
type lingering struct {
	time time.Duration // 0: shells end with their connection

	mu sync.Mutex
	by map[string]*holder // by the handshake's key
}

// holder is a connection with a shell.
type holder struct {
	key  string
	c    *websocket.Conn
	next chan *shell // receives the shell
}

// enter records a connection, and returns the shell of the previous one with the same handshake,
// nil for none.
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
	_ = before.c.CloseNow() // it may not have noticed the loss yet
	select {
	case sh := <-before.next:
		return h, sh
	case <-time.After(takeTime):
		return h, nil
	}
}

// leave removes a connection.
func (l *lingering) leave(h *holder) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.by[h.key] == h {
		delete(l.by, h.key)
	}
}

// hand passes the shell of a lost connection to the next one. It returns false if none arrived in
// time.
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
