package api

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
)

// CallerHeader names, in a request that a node passes on, who asked that node.
// It counts where the listener knows that its caller is a node.
const CallerHeader = "X-Holdfast-Caller"

// Bounds of what strangers can make the log hold.
const (
	maxAuditText   = 256 // bytes of what a caller chose
	strangersEvery = time.Second
	strangersMost  = 10 // lines in that time about callers that are unknown
)

// audit writes a line for every request of a route that needs an admin: what
// was done, and what was refused.
type audit struct {
	log       *slog.Logger
	strangers pace
}

// act is one request as the line is made of it.
type act struct {
	r      *http.Request
	route  string
	caller caller
	begin  time.Time

	mu    sync.Mutex
	notes []any // what the handler knows beside it
}

type actKey struct{}

// note adds an attribute to the request's line in the audit log.
func note(ctx context.Context, key string, value any) {
	if a, ok := ctx.Value(actKey{}).(*act); ok {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.notes = append(a.notes, slog.Any(key, value))
	}
}

func (u *audit) write(a *act, peer bool, err error) {
	unlogged, ok := 0, true
	if a.caller.who == stranger {
		if unlogged, ok = u.strangers.step(time.Now()); !ok {
			return
		}
	}
	line := []any{"audit", true, "act", a.route, "who", bounded(a.caller.who)}
	if c, ok := a.r.Context().Value(credKey{}).(*unix.Ucred); ok {
		line = append(line, "pid", c.Pid, "uid", c.Uid)
	} else {
		line = append(line, "from", a.r.RemoteAddr)
	}
	if by := a.r.Header.Get(CallerHeader); by != "" && peer {
		line = append(line, "for", bounded(by))
	}
	if key := a.r.PathValue("key"); key != "" {
		line = append(line, "session", bounded(key))
	}
	if node := a.r.PathValue("node"); node != "" {
		line = append(line, "node", bounded(node))
	}
	a.mu.Lock()
	line = append(line, a.notes...)
	a.mu.Unlock()
	result := "ok"
	if err != nil {
		result = string(toError(err).Code)
	}
	line = append(line, "result", result, "took", holdfast.Millis(time.Since(a.begin)))
	if err != nil {
		line = append(line, "err", bounded(err.Error()))
	}
	if unlogged > 0 {
		line = append(line, "unlogged", unlogged) // refused tries of strangers, since the last line about one
	}
	u.log.Info("api", line...)
}

// stranger is who a caller is that has not proved anything.
const stranger = "unknown"

func bounded(s string) string { return s[:min(len(s), maxAuditText)] }

// pace lets strangersMost steps through in each strangersEvery.
type pace struct {
	mu      sync.Mutex
	since   time.Time
	n       int
	skipped int
}

// step reports whether this step may be made, and how many were not since the
// last that was.
func (p *pace) step(now time.Time) (skipped int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.since) >= strangersEvery {
		p.since, p.n = now, 0
	}
	if p.n >= strangersMost {
		p.skipped++
		return 0, false
	}
	p.n++
	skipped, p.skipped = p.skipped, 0
	return skipped, true
}

type credKey struct{}

// withCred adds to a connection's context who is at the other end of a unix
// socket, as the kernel knew it when it connected (unix(7), SO_PEERCRED).
func withCred(ctx context.Context, c net.Conn) context.Context {
	socket, ok := c.(*net.UnixConn)
	if !ok {
		return ctx
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return ctx
	}
	var cred *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if errors.Join(err, failed) != nil || cred == nil {
		return ctx
	}
	return context.WithValue(ctx, credKey{}, cred)
}

// sent is an error that the caller has been told of.
type sent struct{ error }

func (s sent) Unwrap() error { return s.error }
