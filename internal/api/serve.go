package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Limits of a connection.
const (
	headerLimit = 10 * time.Second
	answerLimit = 30 * time.Second
	idleLimit   = 2 * time.Minute
	maxHeader   = 128 << 10       // of a forwarded request, too: over any gateway.max_header_bytes that makes sense
	maxConns    = 1024            // open at once, beside streams; more are closed
	closeLimit  = 5 * time.Second // for answers under way when the agent ends
)

// Serve answers on l with h until ctx is done; then streams end, answers under
// way are given closeLimit, and Serve returns nil once no handler runs any
// more: a stop or drain that has begun is waited for. It closes l. A listener
// for TLS is wrapped by the caller, and must not offer HTTP/2: exec upgrades
// HTTP/1.1.
func Serve(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	return ServeUpTo(ctx, maxConns, l, h, log)
}

// ServeUpTo is Serve with another bound on the connections that are open at
// once, beside streams.
func ServeUpTo(ctx context.Context, conns int, l net.Listener, h http.Handler, log *slog.Logger) error {
	var running sync.WaitGroup
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	srv := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			running.Add(1)
			defer running.Done()
			h.ServeHTTP(w, r)
		}),
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext:       withCred,
		ReadHeaderTimeout: headerLimit,
		WriteTimeout:      answerLimit, // renewed for each request; routes set their own
		IdleTimeout:       idleLimit,
		MaxHeaderBytes:    maxHeader,
		ConnState:         (&connLimit{max: int64(conns)}).watch,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(l) }()
	select {
	case err := <-ended:
		cancel()
		_ = srv.Close()
		running.Wait()
		return fmt.Errorf("serving the API on %v: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	// Handlers that only compute an answer finish; streams see their
	// context end.
	cancel()
	limit, stop := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer stop()
	err := srv.Shutdown(limit)
	if errors.Is(err, context.DeadlineExceeded) {
		err = srv.Close()
	}
	<-ended
	running.Wait()
	if err != nil {
		return fmt.Errorf("closing the API on %v: %w", l.Addr(), err)
	}
	return nil
}

// connLimit closes new connections while there are max already.
type connLimit struct {
	max  int64
	open atomic.Int64
}

// watch is an http.Server's ConnState. A hijacked connection is a stream, which
// are counted elsewhere.
func (c *connLimit) watch(conn net.Conn, s http.ConnState) {
	switch s {
	case http.StateNew:
		if c.open.Add(1) > c.max {
			_ = conn.Close() // the server sees it, and StateClosed comes
		}
	case http.StateClosed, http.StateHijacked:
		c.open.Add(-1)
	}
}
