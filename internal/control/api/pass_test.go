package api_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/apitest"
	"holdfast/internal/control/api/client"
	"holdfast/internal/platform/frame"
	"holdfast/internal/platform/pki"
)

// member is a node of a fleet: it has sessions of its own, and the records of the other
// members, as from a store.
type member struct {
	*apitest.Backend
	others *[]*member
	// claimed, if not nil, is the error of StartSession: another node was faster.
	claimed *holdfast.ElsewhereError
}

func (m *member) Parts() api.Parts {
	p := m.Backend.Parts()
	p.Sessions = m
	return p
}

func (m *member) Session(ctx context.Context, key holdfast.SessionKey) (api.Session, error) {
	s, err := m.Backend.Session(ctx, key)
	for _, o := range *m.others {
		if err == nil {
			break
		}
		if s, err = o.Backend.Session(ctx, key); err == nil && o != m {
			s = api.Session{Owner: s.Owner} // the store lacks the details that only the owner knows
		}
	}
	return s, err
}

func (m *member) StartSession(ctx context.Context, key holdfast.SessionKey, template string) (api.Session, error) {
	if m.claimed != nil {
		return api.Session{}, m.claimed
	}
	return m.Backend.StartSession(ctx, key, template)
}

// seen records the requests that a node's fleet listener got.
type seen struct {
	mu   sync.Mutex
	reqs []*http.Request
}

func (s *seen) handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.reqs = append(s.reqs, r)
		s.mu.Unlock()
		h.ServeHTTP(w, r)
	})
}

func (s *seen) all() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*http.Request(nil), s.reqs...)
}

// fleet is n1 and n2, with real servers: for each other over mutual TLS with the
// fleet's certificates. The client asks n1, with a token.
type fleet struct {
	n1, n2 *member
	at2    *seen // what n2 got from n1
	c      *client.Client
	public string // public address of n1
	log1   *ledger
	log2   *ledger
}

func newFleet(t *testing.T) *fleet {
	f := &fleet{at2: &seen{}, log1: &ledger{}, log2: &ledger{}}
	all := &[]*member{}
	f.n1 = &member{Backend: &apitest.Backend{Node: "n1"}, others: all}
	f.n2 = &member{Backend: &apitest.Backend{Node: "n2"}, others: all}
	*all = []*member{f.n1, f.n2}
	id1, id2 := identities(t)
	hops := map[holdfast.NodeID]string{"gone": silent(t)}
	forward := func(own *pki.Identity) func(holdfast.NodeID) (http.RoundTripper, error) {
		return func(node holdfast.NodeID) (http.RoundTripper, error) {
			addr, ok := hops[node]
			if !ok {
				return nil, holdfast.ErrNotFound
			}
			tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				d := tls.Dialer{Config: own.ClientTLS(node)}
				return d.DialContext(ctx, "tcp", addr)
			}}
			t.Cleanup(tr.CloseIdleConnections)
			return tr, nil
		}
	}
	hops["n1"] = listen(t, api.New(f.n1.Parts(), api.Options{Peer: peer, Forward: forward(id1)}), id1.ServerTLS())
	hops["n2"] = listen(t, f.at2.handler(api.New(f.n2.Parts(), api.Options{Peer: peer, Forward: forward(id2), Log: f.log2.logger()})), id2.ServerTLS())
	hops["moved"] = hops["n2"] // another node has its address by now
	f.public = listen(t, api.New(f.n1.Parts(), api.Options{Tokens: tokens(t, "deploy "+newToken, ""), Forward: forward(id1), Log: f.log1.logger()}), nil)
	var err error
	if f.c, err = client.New(client.Options{URL: "http://" + f.public, Token: newToken}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.c.Close)
	return f
}

// identities returns those of n1 and n2.
func identities(t *testing.T) (n1, n2 *pki.Identity) {
	t.Helper()
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca")
	if _, err := pki.InitCA(ca, time.Now()); err != nil {
		t.Fatal(err)
	}
	load := func(id holdfast.NodeID) *pki.Identity {
		out := filepath.Join(dir, string(id))
		if _, err := (pki.Join{CA: ca, Node: id, Out: out, Validity: time.Hour, Now: time.Now()}).Do(); err != nil {
			t.Fatal(err)
		}
		i, err := pki.Load(pki.FilesIn(out), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	return load("n1"), load("n2")
}

// peer returns the node at the other end of a connection, from its certificate.
func peer(r *http.Request) holdfast.NodeID {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return ""
	}
	id, err := pki.NodeOf(r.TLS.PeerCertificates[0])
	if err != nil {
		return ""
	}
	return id
}

// listen serves h with the agent's own server, over TLS if conf is not nil, and returns
// its address.
func listen(t *testing.T, h http.Handler, conf *tls.Config) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if conf != nil {
		l = tls.NewListener(l, conf)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- api.Serve(ctx, l, h, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return addr
}

// silent returns an address where connections end without an answer. The listener stays
// open, so that no other program gets the port.
func silent(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	})
	t.Cleanup(func() { l.Close(); serving.Wait() })
	return l.Addr().String()
}

func (f *fleet) start(t *testing.T, m *member, keys ...holdfast.SessionKey) {
	t.Helper()
	for _, k := range keys {
		if _, err := m.Backend.StartSession(t.Context(), k, ""); err != nil {
			t.Fatal(err)
		}
	}
}

// n2 runs the detached commands of its sessions, for clients of n1.
func TestPassesDetachedCommands(t *testing.T) {
	f := newFleet(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	f.start(t, f.n2, "far")
	c, err := f.c.StartCommand(ctx, "far", api.ExecRequest{Command: []string{"read"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	var last frame.Position
	code, err := f.c.Attach(ctx, "far", c.ID, api.AttachRequest{}, api.Exec{Stdin: strings.NewReader("hello\n"), Stdout: &out}, func(p frame.Position) { last = p })
	if want := "got \"hello\\n\"\r\n"; code != 0 || err != nil || out.String() != want || last.Offset != int64(len(want)) {
		t.Errorf("attach: %d, %v, %q at %+v", code, err, out.String(), last)
	}
	if c, err = f.c.StartCommand(ctx, "far", api.ExecRequest{Command: []string{"wait"}}); err != nil {
		t.Fatal(err)
	}
	if err := f.c.SignalCommand(ctx, "far", c.ID, "term"); err != nil {
		t.Error(err)
	}
	if code, err := f.c.Attach(ctx, "far", c.ID, api.AttachRequest{}, api.Exec{}, nil); code != 143 || err != nil {
		t.Errorf("attach: %d, %v", code, err)
	}
	if all, err := f.c.Commands(ctx, "far"); len(all) != 2 || all[1].ExitCode != 143 || err != nil {
		t.Errorf("%+v, %v", all, err)
	}
	if _, err := f.c.Attach(ctx, "far", "none", api.AttachRequest{}, api.Exec{}, nil); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("an unknown command: %v", err)
	}
	if n := len(f.at2.all()); n != 7 {
		t.Errorf("n2 was asked %d times, want 7", n)
	}
}

// A forwarded connection reaches a session of another node, with both of its directions.
func TestPassesForwardedConnections(t *testing.T) {
	f := newFleet(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	f.start(t, f.n2, "far")
	p, err := f.c.DialPort(ctx, "far", 7)
	if err != nil {
		t.Fatal(err)
	}
	local := &half{in: strings.NewReader(strings.Repeat("hello", 100_000))}
	if err := p.Carry(ctx, local); err != nil || local.out.Len() != 500_000 || !local.ended {
		t.Errorf("%v, %d bytes, ended %v", err, local.out.Len(), local.ended)
	}
	var e *api.Error
	if _, err := f.c.DialPort(ctx, "far", 9); !errors.As(err, &e) || e.Code != api.CodePortRefused {
		t.Errorf("a closed port: %v", err)
	}
	if n := len(f.at2.all()); n != 2 {
		t.Errorf("n2 was asked %d times, want 2", n)
	}
}

// half is a stream with a given input.
type half struct {
	in    io.Reader
	out   bytes.Buffer
	ended bool
}

func (h *half) Read(b []byte) (int, error)  { return h.in.Read(b) }
func (h *half) Write(b []byte) (int, error) { return h.out.Write(b) }
func (h *half) CloseWrite() error           { h.ended = true; return nil }
func (h *half) Close() error                { return nil }

// n2 answers every request to n1 about a session of n2.
func TestSessionsOfAnotherNode(t *testing.T) {
	f := newFleet(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	f.start(t, f.n2, "first", "far", "cut", "stuck")
	f.start(t, f.n1, "near")

	if s, err := f.c.Session(ctx, "far"); err != nil || s.Node != "n2" || s.Connections != 1 {
		t.Errorf("show: %+v, %v: what only n2 knows is missing", s, err)
	}
	if s, err := f.c.StartSession(ctx, "far", "web"); err != nil || s.Node != "n2" {
		t.Errorf("start: %+v, %v", s, err)
	}
	var out bytes.Buffer
	if err := f.c.Logs(ctx, "far", api.LogOptions{Tail: 1, Timestamps: true}, &out); err != nil || out.String() != "2026-01-02T03:04:05Z line 3\n" {
		t.Errorf("logs: %q, %v", out.String(), err)
	}
	if err := f.c.Logs(ctx, "cut", api.LogOptions{}, io.Discard); !errors.Is(err, holdfast.ErrEngine) {
		t.Errorf("logs that break: %v", err)
	}
	out.Reset()
	code, err := f.c.Exec(ctx, "far", api.Exec{Command: []string{"cat"}, Stdin: strings.NewReader("hello\n"), Stdout: &out})
	if code != 0 || err != nil || out.String() != "hello\n" {
		t.Errorf("exec: %d, %v, %q", code, err, out.String())
	}
	if code, err := f.c.Exec(ctx, "far", api.Exec{Command: []string{"exit", "42"}}); code != 42 || err != nil {
		t.Errorf("exec: %d, %v", code, err)
	}
	if r, err := f.c.StopSession(ctx, "stuck"); err != nil || len(r.Left) != 1 {
		t.Errorf("stop: %+v, %v", r, err)
	}
	if _, err := f.c.StopSession(ctx, "far"); err != nil {
		t.Error(err)
	}
	n := len(f.at2.all())
	if n != 8 {
		t.Errorf("n2 was asked %d times, want 8", n)
	}
	// n1 answers requests about its own sessions, and about sessions without an owner.
	if s, err := f.c.Session(ctx, "near"); err != nil || s.Node != "n1" {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err := f.c.StartSession(ctx, "fresh", ""); err != nil || s.Node != "n1" {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := f.c.StopSession(ctx, "missing"); !errors.Is(err, holdfast.ErrNotFound) {
		t.Error(err)
	}
	if got := len(f.at2.all()); got != n {
		t.Errorf("n2 got %d requests about sessions that it does not own", got-n)
	}
}

// A log that is followed over two nodes arrives line by line, and ends on both when its
// reader disconnects.
func TestFollowingAcrossNodes(t *testing.T) {
	f := newFleet(t)
	f.start(t, f.n2, "far")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- f.c.Logs(ctx, "far", api.LogOptions{Tail: 0, Follow: true}, w) }()
	if _, err := io.ReadFull(r, make([]byte, len("line 4\nline 5\n"))); err != nil {
		t.Fatal(err)
	}
	cancel()
	go func() { _, _ = io.Copy(io.Discard, r) }()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	w.Close()
	for _, log := range []*ledger{f.log1, f.log2} {
		if line := log.one(t); line["act"] != "sessionLogs" { // written when the stream has ended
			t.Errorf("%v", line)
		}
	}
}

func TestAnotherNodeIsCordonedAndDrained(t *testing.T) {
	f := newFleet(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	f.start(t, f.n2, "far")
	if err := f.c.Cordon(ctx, "n2"); err != nil {
		t.Fatal(err)
	}
	holds(t, "here", f.log1.one(t), map[string]string{"caller": "token deploy", "act": "cordonNodeByID", "node": "n2", "passed_to": "n2", "result": "ok"})
	holds(t, "there", f.log2.one(t), map[string]string{"caller": "node n1", "for": "token deploy", "act": "cordonNodeByID", "node": "n2", "result": "ok"})
	if nodes, err := f.n2.Nodes(ctx); err != nil || !nodes[0].Draining {
		t.Errorf("%+v, %v", nodes, err)
	}
	if nodes, err := f.n1.Nodes(ctx); err != nil || nodes[0].Draining {
		t.Errorf("n1 was cordoned: %+v, %v", nodes, err)
	}
	if err := f.c.Uncordon(ctx, "n2"); err != nil {
		t.Error(err)
	}
	var steps []string
	rep, err := f.c.Drain(ctx, "n2", api.DrainRequest{}, func(s holdfast.Step) { steps = append(steps, s.Name) })
	if err != nil || rep.Node != "n2" || rep.Dead != 1 || fmt.Sprint(steps) != "[kill release]" {
		t.Errorf("%+v, %v, %v", rep, steps, err)
	}
	if err := f.c.Cordon(ctx, "n1"); err != nil { // by name, also this node
		t.Error(err)
	}
	if nodes, err := f.n1.Nodes(ctx); err != nil || !nodes[0].Draining {
		t.Errorf("%+v, %v", nodes, err)
	}
}

// A node that is not up is not found. A node that does not answer has another error,
// which the log has, too.
func TestNodesThatDoNotAnswer(t *testing.T) {
	f := newFleet(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := f.c.Cordon(ctx, "n7")
	if !errors.Is(err, holdfast.ErrNotFound) || !strings.Contains(holdfast.HintOf(err), "node ls") {
		t.Errorf("%v, hint %q", err, holdfast.HintOf(err))
	}
	holds(t, "not up", f.log1.one(t), map[string]string{"node": "n7", "result": "not_found"})
	var e *api.Error
	if _, err := f.c.Drain(ctx, "gone", api.DrainRequest{}, func(holdfast.Step) {}); !errors.As(err, &e) || e.Code != api.CodeNodeDown || e.Advice == "" {
		t.Errorf("%v", err)
	}
	holds(t, "gone", f.log1.one(t), map[string]string{"node": "gone", "result": "node_down"})
	if err := f.c.Cordon(ctx, "moved"); !errors.As(err, &e) || e.Code != api.CodeNodeDown || !strings.Contains(e.Message, "node n2 answered, and moved was expected") {
		t.Errorf("%v", err)
	}
	if nodes, err := f.n2.Nodes(ctx); err != nil || nodes[0].Draining {
		t.Errorf("another node was cordoned: %+v, %v", nodes, err)
	}
}

// Two nodes that each take the other for the owner do not pass a request on twice.
func TestRequestsArePassedOnOnce(t *testing.T) {
	f := newFleet(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	at1, at2 := holdfast.Owner{Key: "x", Node: "n1"}, holdfast.Owner{Key: "x", Node: "n2"}
	f.n1.claimed, f.n2.claimed = &holdfast.ElsewhereError{Owner: at2}, &holdfast.ElsewhereError{Owner: at1}
	_, err := f.c.StartSession(ctx, "x", "")
	var e *api.Error
	if !errors.As(err, &e) || e.Code != api.CodeElsewhere || !strings.Contains(e.Message, "n1") {
		t.Errorf("%v", err)
	}
	if n := len(f.at2.all()); n != 1 {
		t.Errorf("n2 was asked %d times", n)
	}
	// A session that another node has just claimed is started there, with the requested
	// template.
	f.n2.claimed = nil
	if s, err := f.c.StartSession(ctx, "x", "web"); err != nil || s.Node != "n2" || s.Template != "web" {
		t.Errorf("%+v, %v", s, err)
	}
}

// The caller's credentials stay at the node that got the request.
func TestSecretsAreNotPassedOn(t *testing.T) {
	f := newFleet(t)
	f.start(t, f.n2, "far")
	r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+f.public+"/v1/sessions/far", nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"Authorization": "Bearer " + newToken, "Cookie": "a=b", "X-Holdfast-Epoch": "7",
		"X-Holdfast-Caller": "token root", "X-Forwarded-For": "192.0.2.1", "Sec-Fetch-Site": "same-origin"} {
		r.Header.Set(name, value)
	}
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(r)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", resp, err)
	}
	defer resp.Body.Close()
	if v := resp.Header.Values("Content-Security-Policy"); len(v) != 1 {
		t.Errorf("headers are there twice: %v", resp.Header)
	}
	all := f.at2.all()
	if len(all) != 1 {
		t.Fatalf("n2 was asked %d times", len(all))
	}
	h := all[0].Header
	for _, name := range []string{"Authorization", "Cookie", "X-Holdfast-Epoch", "X-Forwarded-For", "Sec-Fetch-Site"} {
		if h.Get(name) != "" {
			t.Errorf("%s reached n2: %q", name, h.Get(name))
		}
	}
	if h.Get(api.PassedHeader) != "1" || h.Get(api.CallerHeader) != "token deploy" {
		t.Errorf("%v", h)
	}
}
