// Package echoserver is the HTTP server that tests and benches run as a session. It
// echoes requests and WebSocket messages, and it streams.
//
//	/         the request, as a Reply in JSON
//	/ws       WebSocket echo, messages up to 1 MiB
//	/count    adds one to a number in memory, and answers a Count in JSON
//	/stream   ?n=10&every=100ms: n lines, flushed one by one
//	/healthz  204
package echoserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// Reply is the answer of /.
type Reply struct {
	Method     string      `json:"method"`
	Path       string      `json:"path"` // with the query, as it was sent
	Host       string      `json:"host"`
	RemoteAddr string      `json:"remote_addr"`
	Header     http.Header `json:"header"`
	Session    string      `json:"session"` // HOLDFAST_SESSION, or the identity that a warm container received
	Epoch      string      `json:"epoch"`   // HOLDFAST_EPOCH, likewise
	Hostname   string      `json:"hostname"`
	// Env is the environment that a warm container received, otherwise empty.
	Env map[string]string `json:"env,omitempty"`
}

// maxMessage is the maximum length of a WebSocket message in bytes, maxTicks the maximum
// number of lines of a stream.
const (
	maxMessage = 1 << 20
	maxTicks   = 100_000
)

// Run serves on addr (host:port) until ctx is done. Then it closes open connections and
// returns nil. With TicksEnv it also ticks, from the moment it knows its identity.
func Run(ctx context.Context, addr string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	id := &identity{}
	var ticking sync.WaitGroup
	defer ticking.Wait()
	defer cancel()
	failed := make(chan error, 1)
	if dir := os.Getenv(TicksEnv); dir != "" {
		id.known = func() error {
			t, err := openTicks(dir, id.get("HOLDFAST_SESSION"), id.get("HOLDFAST_EPOCH"))
			if err != nil {
				return err
			}
			ticking.Go(func() {
				if err := t.run(ctx); err != nil {
					failed <- err
					cancel()
				}
			})
			return nil
		}
	}
	if os.Getenv("HOLDFAST_SESSION") != "" && id.known != nil {
		if err := id.known(); err != nil {
			return err
		}
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", addr, err)
	}
	err = serve(ctx, ln, id)
	cancel()
	ticking.Wait()
	select {
	case e := <-failed:
		err = errors.Join(err, e)
	default:
	}
	return err
}

// Serve is Run on a listener, which it closes, without ticks.
func Serve(ctx context.Context, ln net.Listener) error { return serve(ctx, ln, &identity{}) }

func serve(ctx context.Context, ln net.Listener, id *identity) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	heard := make(chan error, 1)
	go func() {
		err := id.listen(ctx)
		if err != nil {
			cancel()
		}
		heard <- err
	}()
	srv := &http.Server{
		Handler:           handlerOf(id),
		ReadHeaderTimeout: 10 * time.Second,
		// WebSockets end with their context; Close does not reach them.
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	select {
	case err := <-done:
		cancel()
		return errors.Join(err, <-heard)
	case <-ctx.Done():
	}
	err := errors.Join(<-heard, srv.Close())
	if serveErr := <-done; !errors.Is(serveErr, http.ErrServerClosed) {
		err = errors.Join(err, serveErr)
	}
	return err
}

// Handler returns the server's handler.
func Handler() http.Handler { return handlerOf(&identity{}) }

func handlerOf(i *identity) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", i.tell)
	mux.HandleFunc("/ws", echo)
	mux.HandleFunc("/count", (&counter{}).count)
	mux.HandleFunc("/stream", stream)
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	return mux
}

func (i *identity) tell(w http.ResponseWriter, r *http.Request) {
	hostname, _ := os.Hostname() // "" after an error
	w.Header().Set("Content-Type", "application/json")
	// An error means that the client has gone.
	_ = json.NewEncoder(w).Encode(Reply{
		Method:     r.Method,
		Path:       r.RequestURI,
		Host:       r.Host,
		RemoteAddr: r.RemoteAddr,
		Header:     r.Header,
		Session:    i.get("HOLDFAST_SESSION"),
		Epoch:      i.get("HOLDFAST_EPOCH"),
		Env:        i.all(),
		Hostname:   hostname,
	})
}

// echo sends back every WebSocket message. It does not check the origin: behind a proxy
// the origin differs from the host, and the server has nothing to protect.
func echo(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return // Accept has answered
	}
	defer c.CloseNow()
	c.SetReadLimit(maxMessage)
	for {
		kind, data, err := c.Read(r.Context())
		if err != nil {
			return
		}
		if err := c.Write(r.Context(), kind, data); err != nil {
			return
		}
	}
}

// stream writes n numbered lines and flushes each.
func stream(w http.ResponseWriter, r *http.Request) {
	n, every := 10, 100*time.Millisecond
	if v, err := strconv.Atoi(r.FormValue("n")); err == nil {
		n = min(v, maxTicks)
	}
	if v, err := time.ParseDuration(r.FormValue("every")); err == nil && v > 0 {
		every = v
	}
	flush := http.NewResponseController(w)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for i := range n {
		if _, err := fmt.Fprintf(w, "tick %d\n", i); err != nil {
			return
		}
		if err := flush.Flush(); err != nil {
			return
		}
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		}
	}
}
