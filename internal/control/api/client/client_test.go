package client_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/apitest"
	"holdfast/internal/control/api/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is the time limit of a wait.
const patience = 20 * time.Second

// agent serves b on a unix socket, as the real one does, until the function it
// returns is called or the test ends.
func agent(t *testing.T, b interface{ Parts() api.Parts }) (*client.Client, func()) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "a.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	stop := serveOn(t, l, api.New(b.Parts(), api.Options{Admin: true}))
	return dial(t, client.Options{Socket: socket}), stop
}

// serveOn serves until the function it returns is called or the test ends.
func serveOn(t *testing.T, l net.Listener, h http.Handler) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- api.Serve(ctx, l, h, slog.New(slog.DiscardHandler)) }()
	stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("serving: %v", err)
		}
		ended <- nil
	}
	t.Cleanup(stop)
	return stop
}

// certificate returns one for 127.0.0.1, and the TLS configuration that trusts it.
func certificate(t *testing.T) (tls.Certificate, *tls.Config) {
	t.Helper()
	s := httptest.NewTLSServer(http.NotFoundHandler()) // httptest makes one
	defer s.Close()
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	return s.TLS.Certificates[0], &tls.Config{RootCAs: pool}
}

func dial(t *testing.T, o client.Options) *client.Client {
	t.Helper()
	c, err := client.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func started(t *testing.T, keys ...holdfast.SessionKey) *apitest.Backend {
	t.Helper()
	b := &apitest.Backend{}
	for _, k := range keys {
		if _, err := b.StartSession(t.Context(), k, ""); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func TestSessionLife(t *testing.T) {
	c, _ := agent(t, started(t))
	ctx := within(t)
	if all, err := c.Sessions(ctx); err != nil || len(all) != 0 {
		t.Fatalf("%v, %v", all, err)
	}
	s, err := c.StartSession(ctx, "alice", "web")
	if err != nil || s.Key != "alice" || s.Template != "web" || s.State != holdfast.Ready {
		t.Fatalf("%+v, %v", s, err)
	}
	if again, err := c.Session(ctx, "alice"); err != nil || again != s {
		t.Errorf("%+v, %v, want %+v", again, err, s)
	}
	rep, err := c.StopSession(ctx, "alice")
	if err != nil || len(rep.Dead) != 1 || rep.Took == 0 {
		t.Errorf("%+v, %v", rep, err)
	}
	if _, err := c.Session(ctx, "alice"); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("after the stop: %v", err)
	}
	v, err := c.Version(ctx)
	if err != nil || v.Node != "n1" {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestErrorsComeBackTyped(t *testing.T) {
	b := started(t)
	c, _ := agent(t, b)
	ctx := within(t)
	_, err := c.StartSession(ctx, "broken", "")
	var e *api.Error
	if !errors.As(err, &e) || e.Code != api.CodeBootFailed || !strings.Contains(e.Log, "database") || holdfast.HintOf(err) != "look at the template's command" {
		t.Errorf("%#v", err)
	}
	// A key that was not parsed must not become another path.
	if _, err := c.Session(ctx, "../nodes"); !errors.As(err, &e) || e.Code != api.CodeBadKey {
		t.Errorf("%v", err)
	}
	for _, want := range []error{holdfast.ErrEngine, holdfast.ErrStore, holdfast.ErrBusy, holdfast.ErrDraining, holdfast.ErrNotFound} {
		b.SetFault(want)
		if _, err := c.Nodes(ctx); !errors.Is(err, want) {
			t.Errorf("%v came back as %v", want, err)
		}
	}
}

func TestDrain(t *testing.T) {
	b := started(t, "alice", "bob", "stuck")
	c, _ := agent(t, b)
	ctx := within(t)
	var steps []holdfast.Step
	off := false
	rep, err := c.Drain(ctx, "", api.DrainRequest{Budget: holdfast.Millis(time.Second), PauseEngine: &off}, func(s holdfast.Step) { steps = append(steps, s) })
	if err != nil || rep.Dead != 2 || len(rep.Left) != 1 || rep.Left[0].Key != "stuck" || rep.Notice == "" {
		t.Errorf("%+v, %v", rep, err)
	}
	if len(steps) != 2 || steps[0] != rep.Steps[0] || steps[1] != rep.Steps[1] {
		t.Errorf("steps are %v, the report's %v", steps, rep.Steps)
	}
	if _, err := c.StartSession(ctx, "carol", ""); !errors.Is(err, holdfast.ErrDraining) {
		t.Errorf("start while draining: %v", err)
	}
	if err := c.Uncordon(ctx, ""); err != nil {
		t.Error(err)
	}
	if _, err := c.StartSession(ctx, "carol", ""); err != nil {
		t.Error(err)
	}
}

func TestLogs(t *testing.T) {
	c, stop := agent(t, started(t, "alice", "cut"))
	ctx := within(t)
	var out bytes.Buffer
	if err := c.Logs(ctx, "alice", api.LogOptions{Tail: 2, Timestamps: true}, &out); err != nil {
		t.Error(err)
	}
	if want := "2026-01-02T03:04:05Z line 2\n2026-01-02T03:04:05Z line 3\n"; out.String() != want {
		t.Errorf("%q", out.String())
	}
	out.Reset()
	if err := c.Logs(ctx, "cut", api.LogOptions{Tail: 1}, &out); !errors.Is(err, holdfast.ErrEngine) || out.String() != "line 3\n" {
		t.Errorf("broken in the middle: %q, %v", out.String(), err)
	}
	if err := c.Logs(ctx, "missing", api.LogOptions{}, &out); !errors.Is(err, holdfast.ErrNotFound) {
		t.Error(err)
	}
	// Following ends with the agent, not before.
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- c.Logs(ctx, "alice", api.LogOptions{Tail: 0, Follow: true}, w) }()
	if _, err := io.ReadFull(r, make([]byte, len("line 4\nline 5\n"))); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, r) }()
	stop()
	if err := <-ended; err == nil {
		t.Error("the stream ended with the agent, and that was no error")
	}
	w.Close()
}

func TestFollowingEndsWithItsReader(t *testing.T) {
	c, _ := agent(t, started(t, "alice"))
	ctx, cancel := context.WithCancel(within(t))
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- c.Logs(ctx, "alice", api.LogOptions{Follow: true}, w) }()
	if _, err := io.ReadFull(r, make([]byte, 7)); err != nil {
		t.Fatal(err)
	}
	cancel()
	go func() { _, _ = io.Copy(io.Discard, r) }()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	w.Close()
}

// Over TLS with a token everything works as on the socket.
func TestOverTLS(t *testing.T) {
	const token = "a-token-of-some-length"
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte("ops "+token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := api.OpenTokens(api.TokenFiles{Admin: file}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cert, conf := certificate(t)
	serveOn(t, tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}}), api.New(started(t, "alice").Parts(), api.Options{Tokens: tokens}))
	url := "https://" + l.Addr().String()
	ctx := within(t)

	c := dial(t, client.Options{URL: url, Token: token, TLS: conf})
	if all, err := c.Sessions(ctx); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
	var out bytes.Buffer
	if code, err := c.Exec(ctx, "alice", api.Exec{Command: []string{"echo", "hi"}, Stdout: &out}); code != 0 || err != nil || out.String() != "hi\n" {
		t.Errorf("%d, %v, %q", code, err, out.String())
	}
	var e *api.Error
	if _, err := dial(t, client.Options{URL: url, TLS: conf}).Sessions(ctx); !errors.As(err, &e) || e.Code != api.CodeUnauthorized {
		t.Errorf("without a token: %v", err)
	}
	if _, err := dial(t, client.Options{URL: url, Token: token}).Sessions(ctx); !errors.Is(err, client.ErrUnreachable) {
		t.Errorf("with an untrusted certificate: %v", err)
	}
	for _, url := range []string{"http://192.0.2.1:7071", "192.0.2.1:7071", "ftp://192.0.2.1"} {
		var bad *client.AddressError
		if _, err := client.New(client.Options{URL: url, Token: token}); !errors.As(err, &bad) || !strings.Contains(holdfast.HintOf(err), "https://") {
			t.Errorf("a token may go to %s: %v, hint %q", url, err, holdfast.HintOf(err))
		}
	}
}

func TestUnreachable(t *testing.T) {
	ctx := within(t)
	none := filepath.Join(t.TempDir(), "none.sock")
	_, err := dial(t, client.Options{Socket: none}).Sessions(ctx)
	if !errors.Is(err, client.ErrUnreachable) || !strings.Contains(err.Error(), none) || !strings.Contains(holdfast.HintOf(err), "holdfast agent") {
		t.Errorf("%v, hint %q", err, holdfast.HintOf(err))
	}

	// A socket file without an agent.
	c, stop := agent(t, started(t))
	stop()
	if _, err := c.Sessions(ctx); !errors.Is(err, client.ErrUnreachable) {
		t.Errorf("ended agent: %v", err)
	}

	// A remote agent is named by its address, not by a socket.
	off := httptest.NewServer(nil)
	off.Close()
	if _, err := dial(t, client.Options{URL: off.URL}).Sessions(ctx); !errors.Is(err, client.ErrUnreachable) || !strings.Contains(holdfast.HintOf(err), "HOLDFAST_URL") {
		t.Errorf("%v, hint %q", err, holdfast.HintOf(err))
	}

	// An agent that does not answer.
	hung := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hung }))
	t.Cleanup(srv.Close)
	t.Cleanup(func() { close(hung) })
	soon, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := dial(t, client.Options{URL: srv.URL}).Sessions(soon); !errors.Is(err, client.ErrUnreachable) {
		t.Errorf("hung agent: %v", err)
	}

	// Another HTTP server.
	other := httptest.NewServer(http.RedirectHandler("/login", http.StatusFound))
	t.Cleanup(other.Close)
	if _, err := dial(t, client.Options{URL: other.URL}).Sessions(ctx); err == nil || !strings.Contains(err.Error(), "not a holdfast agent") {
		t.Errorf("another server: %v", err)
	}
}

func TestServeFailsWithItsListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	if err := api.Serve(within(t), l, http.NotFoundHandler(), log); !errors.Is(err, net.ErrClosed) {
		t.Errorf("serving on a closed listener: %v", err)
	}
}
