package etcd

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
	"holdfast/internal/platform/store/storetest"
)

func TestDialed(t *testing.T) {
	conf := startCluster(t).config()
	conf.Timeout = 10 * time.Second // on a busy machine an answer may be late
	storetest.Run(t, storetest.Subject{
		Open:   func(t *testing.T) store.Store { return dial(t, conf) },
		Forget: forget,
	})
}

func TestDialRefused(t *testing.T) {
	c := startCluster(t)
	wrong := filepath.Join(t.TempDir(), "wrong")
	must(t, os.WriteFile(wrong, []byte("wrong"), 0o600))
	for _, test := range []struct {
		name   string
		change func(*Config)
		want   string // in the error
		away   bool   // the error wraps ErrStore; otherwise the configuration is wrong
	}{
		{"no endpoint", func(c *Config) { c.Endpoints = nil }, "no endpoints", false},
		{"no server", func(c *Config) { c.Endpoints = []string{"https://127.0.0.1:1"} }, "connection refused", true},
		{"wrong password", func(c *Config) { c.PasswordFile = wrong }, "invalid user ID or password", true},
		{"no password", func(c *Config) { c.Username, c.PasswordFile = "", "" }, "permission denied", true},
		{"no password file", func(c *Config) { c.PasswordFile += ".not" }, "no such file", false},
		{"no certificate", func(c *Config) { c.TLS.CertFile, c.TLS.KeyFile = "", "" }, "certificate required", true},
		{"no key", func(c *Config) { c.TLS.KeyFile = "" }, "needs its key", false},
		{"unknown authority", func(c *Config) { c.TLS.CAFile = "" }, "unknown authority", true},
		{"no CA file", func(c *Config) { c.TLS.CAFile += ".not" }, "no such file", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			conf := c.config()
			conf.DialTimeout = time.Second
			test.change(&conf)
			s, err := Dial(t.Context(), conf)
			if err == nil {
				s.Close()
				t.Fatal("Dial works")
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v; want it to say %q", err, test.want)
			}
			if away := errors.Is(err, holdfast.ErrStore); away != test.away || away && holdfast.HintOf(err) == "" {
				t.Errorf("%v: ErrStore is %v (hint %q); want %v", err, away, holdfast.HintOf(err), test.away)
			}
		})
	}
}

// TestCutOff: bytes stop flowing while the connection stays, as at the begin of a
// network partition. Calls fail by the store's own deadline. A watch goes on
// afterwards and has missed nothing.
func TestCutOff(t *testing.T) {
	c := startCluster(t)
	link := newLink(t, strings.TrimPrefix(c.endpoint, "https://"))
	conf := c.config()
	direct := dial(t, conf)
	conf.Endpoints = []string{"https://" + link.addr()}
	s := dial(t, conf)
	id, _, err := s.Grant(t.Context(), time.Hour)
	must(t, err)
	_, at, err := s.List(t.Context())
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	events := s.Watch(ctx, at)
	_, err = s.Claim(t.Context(), holdfast.Owner{Key: "before", State: holdfast.Claimed}, id)
	must(t, err)
	if e := <-events; e.Key != "before" {
		t.Fatalf("first event %+v", e)
	}

	link.cut(true)
	if err := s.KeepAlive(t.Context(), id); !errors.Is(err, holdfast.ErrStore) || holdfast.HintOf(err) == "" {
		t.Errorf("KeepAlive while cut off = %v; want ErrStore with a hint", err)
	}
	_, err = direct.Claim(t.Context(), holdfast.Owner{Key: "meanwhile", State: holdfast.Claimed}, id)
	must(t, err)
	forget(t, direct)

	link.cut(false)
	if e := <-events; e.Key != "meanwhile" {
		t.Errorf("after the cut came %+v; want meanwhile", e)
	}
	for s.KeepAlive(t.Context(), id) != nil {
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	for range events {
		continue
	}
}

// link is a TCP proxy that can stop forwarding bytes.
type link struct {
	listener net.Listener
	target   string
	wg       sync.WaitGroup

	mu    sync.Mutex
	open  sync.Cond
	down  bool
	ended bool
	conns []net.Conn
}

func newLink(t *testing.T, target string) *link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	l := &link{listener: listener, target: target}
	l.open.L = &l.mu
	l.wg.Go(l.accept)
	t.Cleanup(l.close)
	return l
}

func (l *link) addr() string { return l.listener.Addr().String() }

func (l *link) cut(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = on
	l.open.Broadcast()
}

func (l *link) close() {
	l.listener.Close()
	l.mu.Lock()
	l.ended = true
	for _, c := range l.conns {
		c.Close()
	}
	l.open.Broadcast()
	l.mu.Unlock()
	l.wg.Wait()
}

func (l *link) accept() {
	for {
		in, err := l.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", l.target)
		if err != nil {
			in.Close()
			continue
		}
		l.mu.Lock()
		l.conns = append(l.conns, in, out)
		l.mu.Unlock()
		l.wg.Go(func() { l.pass(in, out) })
		l.wg.Go(func() { l.pass(out, in) })
	}
}

func (l *link) pass(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		l.mu.Lock()
		for l.down && !l.ended {
			l.open.Wait()
		}
		l.mu.Unlock()
		if _, werr := to.Write(buf[:n]); werr != nil || errors.Is(err, io.EOF) || err != nil {
			return
		}
	}
}
