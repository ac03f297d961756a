package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// Limits of a connection.
const (
	headerLimit = 10 * time.Second
	answerLimit = 30 * time.Second
	idleLimit   = 2 * time.Minute
	maxHeader   = 128 << 10       // also of a forwarded request: more than any sensible gateway.max_header_bytes
	maxConns    = 1024            // open at once, without execs; see connLimit
	closeLimit  = 5 * time.Second // for running answers when the agent ends
)

// Serve answers on l with h until ctx is done. Then streams end, running answers get
// closeLimit, and Serve returns nil when no handler runs: it waits for a stop or drain
// that has begun. It closes l. The caller wraps a listener for TLS and must not offer
// HTTP/2: exec upgrades HTTP/1.1.
func Serve(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	return ServeUpTo(ctx, maxConns, l, h, log)
}

// ServeUpTo is Serve with another limit of open connections, without streams.
func ServeUpTo(ctx context.Context, conns int, l net.Listener, h http.Handler, log *slog.Logger) error {
	var running sync.WaitGroup
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	limit := newConnLimit(conns)
	srv := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			running.Add(1)
			defer running.Done()
			defer limit.serves(r.Context())()
			h.ServeHTTP(w, r)
		}),
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return withConn(withCred(ctx, c), c) },
		ReadHeaderTimeout: headerLimit,
		WriteTimeout:      answerLimit, // renewed for each request; routes set their own deadline
		IdleTimeout:       idleLimit,
		MaxHeaderBytes:    maxHeader,
		ConnState:         limit.watch,
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
	// Handlers that only compute an answer finish. The context of streams ends.
	cancel()
	closing, stop := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer stop()
	err := srv.Shutdown(closing)
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
