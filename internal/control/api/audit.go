package api

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"holdfast"
)

// CallerHeader names, in a request that a node passes on, the caller of that node. It
// counts only if the listener knows that its client is a node.
const CallerHeader = "X-Holdfast-Caller"

// ViaHeader names the program that a caller uses, such as mcp. It is the caller's own
// word, and only the audit log shows it.
const ViaHeader = "X-Holdfast-Via"

// Bounds of audit lines about unknown callers.
const (
	maxAuditText       = 256 // bytes of a text that the caller chose
	unknownEverySecond = 10  // lines about unknown callers
)

// audit writes a line for every request of a route that needs an admin: what was done,
// or refused.
type audit struct {
	log      *slog.Logger
	unknown  *rate.Limiter // of lines about unknown callers
	unlogged atomic.Int64  // lines that the limiter has refused since the last one
}

func newAudit(log *slog.Logger) *audit {
	return &audit{log: log, unknown: rate.NewLimiter(unknownEverySecond, unknownEverySecond)}
}

// allow reports whether a line about an unknown caller may be written, and how many
// were refused since the last allowed one.
func (u *audit) allow(now time.Time) (unlogged int64, ok bool) {
	if !u.unknown.AllowN(now, 1) {
		u.unlogged.Add(1)
		return 0, false
	}
	return u.unlogged.Swap(0), true
}

// act is one request, as its audit line shows it.
type act struct {
	r      *http.Request
	route  string
	caller Caller
	begin  time.Time

	mu    sync.Mutex
	notes []any // attributes that the handler adds
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
	unlogged, ok := int64(0), true
	if a.caller.Name == unknownCaller {
		if unlogged, ok = u.allow(time.Now()); !ok {
			return
		}
	}
	line := []any{"audit", true, "act", a.route, "caller", bounded(a.caller.Name)}
	if c, ok := a.r.Context().Value(credKey{}).(*unix.Ucred); ok {
		line = append(line, "pid", c.Pid, "uid", c.Uid)
	} else {
		line = append(line, "from", a.r.RemoteAddr)
	}
	if by := a.r.Header.Get(CallerHeader); by != "" && peer {
		line = append(line, "for", bounded(by))
	}
	if via := a.r.Header.Get(ViaHeader); via != "" {
		line = append(line, "via", bounded(via))
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
		result = string(ErrorOf(err).Code)
	}
	line = append(line, "result", result, "took", holdfast.Millis(time.Since(a.begin)))
	if err != nil {
		line = append(line, "err", bounded(err.Error()))
	}
	if unlogged > 0 {
		line = append(line, "unlogged", unlogged) // refused requests of unknown callers since the last line about one
	}
	u.log.Info("api", line...)
}

// unknownCaller is the name of an unauthenticated caller.
const unknownCaller = "unknown"

func bounded(s string) string { return s[:min(len(s), maxAuditText)] }

type credKey struct{}

// withCred adds to a connection's context the process at the other end of a unix
// socket, as the kernel recorded it at the connect (unix(7), SO_PEERCRED).
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

// sent is an error that was already sent to the caller.
type sent struct{ error }

func (s sent) Unwrap() error { return s.error }
