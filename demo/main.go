// Command holdfast-demo is the server in the demo's containers. It serves a page with a
// terminal, and starts a shell in its container for each open page. It has only the
// features that a session's server needs: it listens on one port, works below any path
// prefix, answers /healthz, and browsers can reconnect to it.
//
// The server runs as the first process of its container, and therefore reaps the orphans
// of its shells.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	// The server also catches SIGHUP: execve(2) resets caught signals in a child but keeps
	// ignored ones. If nohup started the server, its shells would otherwise ignore SIGHUP.
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	addr := flag.String("addr", ":8080", "address to listen on")
	flag.Parse()
	if err := run(ctx, *addr, slog.New(slog.NewTextHandler(os.Stderr, nil))); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// run serves until ctx is done and every shell has ended.
func run(ctx context.Context, addr string, log *slog.Logger) error {
	// The kernel passes orphans to the first process of a pid namespace. With --pid=host,
	// or below an engine's init, the server is not the first process and must request
	// them (prctl(2)).
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the reaper of orphans: %w", err)
	}
	reaper := newReaper()
	go reaper.run()

	id, err := readIdentity()
	if err != nil {
		return err
	}
	s := newServer(id, reaper, log)
	if v := os.Getenv(lingerEnv); v != "" {
		if s.lingering.time, err = time.ParseDuration(v); err != nil || s.lingering.time < 0 {
			return fmt.Errorf("%s: %q is not a time such as 30s", lingerEnv, v)
		}
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	log.Info("ready", "addr", l.Addr().String(), "session", id.Session, "epoch", id.Epoch)
	return serve(ctx, l, s)
}

// serve answers on l until ctx is done. Then it closes every terminal and waits for the
// shells.
func serve(ctx context.Context, l net.Listener, s *server) error {
	h := &http.Server{
		Handler:           s.handler(),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
	}
	failed := make(chan error, 1)
	go func() { failed <- h.Serve(l) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := h.Shutdown(grace); err != nil {
		return fmt.Errorf("stop serving: %w", err)
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", err)
	}
	s.terminals.Wait()
	return nil
}

// identity is the session of this container, as the page shows it.
type identity struct {
	Session string `json:"session"` // its key
	Epoch   string `json:"epoch"`   // of the claim that this container serves
	Host    string `json:"host"`    // the container's host name
}

// readIdentity reads the environment that the agent set, and the host name. The environment
// has the host name at once, gethostname(2) some milliseconds after the start (docs/pools.md).
func readIdentity() (identity, error) {
	host := os.Getenv("HOSTNAME")
	if host == "" {
		var err error
		if host, err = os.Hostname(); err != nil {
			return identity{}, fmt.Errorf("read the host name: %w", err)
		}
	}
	return identity{
		Session: cmp.Or(os.Getenv("HOLDFAST_SESSION"), "none"),
		Epoch:   cmp.Or(os.Getenv("HOLDFAST_EPOCH"), "none"),
		Host:    host,
	}, nil
}
