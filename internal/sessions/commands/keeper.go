package commands

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// keeper is the command keeper's side.
type keeper struct {
	path   string // of its socket
	engine engine.Engine
	log    *slog.Logger
	table  table

	mu     sync.Mutex
	agents int       // connections that follow the totals
	used   time.Time // when an agent or a command was last here
	leave  bool      // it ends as soon as no command runs
}

// serve serves until the keeper is no longer needed, or for leaveLimit after term.
func (k *keeper) serve(l net.Listener, term <-chan os.Signal) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s := &http.Server{Handler: k.routes(ctx), ReadHeaderTimeout: endLimit, ErrorLog: slog.NewLogLogger(k.log.Handler(), slog.LevelWarn)}
	failed := make(chan error, 1)
	go func() { failed <- s.Serve(l) }()
	tick := time.NewTicker(lookAround)
	defer tick.Stop()
	k.used = time.Now()
	var late <-chan time.Time
	for over := false; !over; {
		select {
		case err := <-failed:
			return fmt.Errorf("serve: %w", err)
		case <-term:
			k.mayLeave()
			late = time.After(leaveLimit)
		case <-late:
			k.log.Warn("the command keeper was told to end; its commands go on without it")
			over = true
		case now := <-tick.C:
			k.table.expire(now.Add(-keepEnded))
		}
		over = over || !k.needed(time.Now()) && k.table.close()
	}
	_ = os.Remove(k.path) // the next keeper's socket has the same name
	cancel()
	ending, stop := context.WithTimeout(context.Background(), endLimit)
	defer stop()
	_ = s.Shutdown(ending) // its error says that a caller does not read
	return nil
}

// mayLeave makes the keeper end once no command runs.
func (k *keeper) mayLeave() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.leave = true
}

// needed reports whether the keeper has to stay. A keeper whose socket was removed cannot
// be found any more; it stays for running commands only.
func (k *keeper) needed(now time.Time) bool {
	n := k.table.totals()
	_, err := os.Lstat(k.path)
	k.mu.Lock()
	defer k.mu.Unlock()
	if n.Running > 0 || n.Kept > 0 && k.agents > 0 {
		k.used = now
	}
	return n.Running > 0 || !k.leave && err == nil && now.Sub(k.used) < idleLimit
}

// routes answer the agent. ctx ends with the keeper.
func (k *keeper) routes(ctx context.Context) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /totals", func(w http.ResponseWriter, r *http.Request) { k.follow(ctx, w, r) })
	mux.HandleFunc("POST /leave", func(http.ResponseWriter, *http.Request) { k.mayLeave() })
	mux.HandleFunc("GET /commands/{key}", func(w http.ResponseWriter, r *http.Request) { answer(w, k.table.list(keyOf(r)), nil) })
	mux.HandleFunc("POST /commands", func(w http.ResponseWriter, r *http.Request) {
		c, err := k.start(ctx, w, r)
		answer(w, c, err)
	})
	mux.HandleFunc("POST /commands/{key}/{id}/signal", func(w http.ResponseWriter, r *http.Request) {
		answer(w, nil, k.signal(w, r))
	})
	mux.HandleFunc("POST /commands/{key}/{id}/attach", func(w http.ResponseWriter, r *http.Request) {
		if err := k.attach(ctx, w, r); err != nil {
			answer(w, nil, err)
		}
	})
	return mux
}

func keyOf(r *http.Request) holdfast.SessionKey { return holdfast.SessionKey(r.PathValue("key")) }

func decode(w http.ResponseWriter, r *http.Request, v any) error {
	return json.NewDecoder(http.MaxBytesReader(w, r.Body, maxMessage)).Decode(v)
}

// start starts a command. It returns when the engine has accepted the command; if the
// engine does not, there is no such command.
func (k *keeper) start(ctx context.Context, w http.ResponseWriter, r *http.Request) (holdfast.Command, error) {
	var q Request
	if err := decode(w, r, &q); err != nil {
		return holdfast.Command{}, err
	}
	c := newCommand(q, time.Now())
	if err := k.table.add(c); err != nil {
		return holdfast.Command{}, err
	}
	go c.run(context.WithoutCancel(ctx), k.engine) // it ends with its container
	select {
	case <-c.began:
	case <-c.done:
		if err := c.refused(); err != nil {
			k.table.remove(c)
			return holdfast.Command{}, err
		}
	case <-r.Context().Done():
	}
	return c.show(), nil
}

func (k *keeper) signal(w http.ResponseWriter, r *http.Request) error {
	var q signalRequest
	if err := decode(w, r, &q); err != nil {
		return err
	}
	c, err := k.table.find(keyOf(r), r.PathValue("id"))
	if err != nil {
		return err
	}
	return c.signal(r.Context(), syscall.Signal(q.Signal))
}

// follow sends the totals after each change, until the agent or the keeper ends. Its
// connection tells the keeper that there is an agent.
func (k *keeper) follow(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	k.count(1)
	defer k.count(-1)
	tick := time.NewTicker(lookAround)
	defer tick.Stop()
	lines, out := json.NewEncoder(w), http.NewResponseController(w)
	last := totals{Running: -1}
	for {
		if now := k.table.totals(); now != last {
			last = now
			if lines.Encode(now) != nil || out.Flush() != nil {
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
	}
}

// count adds n to the number of agents.
func (k *keeper) count(n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.agents += n
	if n < 0 {
		k.used = time.Now()
	}
}
