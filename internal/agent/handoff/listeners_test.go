package handoff

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestSameTCP(t *testing.T) {
	at := func(ip string, port int) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: port} }
	for _, c := range []struct {
		at   net.Addr
		want string
		same bool
	}{
		{at("127.0.0.1", 7070), "127.0.0.1:7070", true},
		{at("127.0.0.1", 7070), "127.0.0.1:7071", false},
		{at("127.0.0.1", 7070), "127.0.0.2:7070", false},
		{at("127.0.0.1", 7070), "localhost:7070", true},
		{at("127.0.0.1", 7070), "127.0.0.1:0", true}, // port 0 matches every port
		{at("127.0.0.1", 7070), "0.0.0.0:7070", false},
		{at("::", 7070), "0.0.0.0:7070", true},
		{at("::", 7070), ":7070", true},
		{at("::", 7070), "[::]:7070", true},
		{at("::", 7070), "127.0.0.1:7070", false},
		{at("::1", 7070), "[::1]:7070", true},
		{at("127.0.0.1", 7070), "no port", false},
		{&net.UnixAddr{Name: "/run/s", Net: "unix"}, "127.0.0.1:7070", false},
	} {
		if got := SameTCP(c.at, c.want); got != c.same {
			t.Errorf("%v is %s: %v, want %v", c.at, c.want, got, c.same)
		}
	}
	// The addresses that package net listens on match.
	for _, want := range []string{"127.0.0.1:0", "0.0.0.0:0", ":0", "localhost:0"} {
		l, err := net.Listen("tcp", want)
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		if !SameTCP(l.Addr(), want) {
			t.Errorf("a listener on %s has the address %v, which does not match", want, l.Addr())
		}
	}
}

func testListeners(t *testing.T) *Listeners {
	d := NewListeners(nil, slog.New(slog.NewTextHandler(t.Output(), nil)))
	t.Cleanup(d.close)
	return d
}

func (d *Listeners) openAt(t *testing.T, name, addr string) *Listener {
	t.Helper()
	o, err := d.Open(name, func(at net.Addr) bool { return SameTCP(at, addr) }, func() (net.Listener, error) { return net.Listen("tcp", addr) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.Close() })
	return o
}

// A listener that is opened again has the same socket; with another address it has a
// new one.
func TestSocketsStayOpen(t *testing.T) {
	d := testListeners(t)
	first := d.openAt(t, "gateway", "127.0.0.1:0")
	at := first.Addr().String()
	first.Close()
	again := d.openAt(t, "gateway", at)
	if again.Addr().String() != at {
		t.Errorf("the address was %s, is %v", at, again.Addr())
	}
	elsewhere := d.openAt(t, "gateway", "127.0.0.2:0")
	again.Close()
	if c, err := net.Dial("tcp", at); err == nil {
		c.Close()
		t.Errorf("%s is still open", at)
	}
	d.KeepOnly("api")
	elsewhere.Close()
	if c, err := net.Dial("tcp", elsewhere.Addr().String()); err == nil {
		c.Close()
		t.Errorf("%v is still open", elsewhere.Addr())
	}
	fails := errors.New("taken")
	if _, err := d.Open("api", func(net.Addr) bool { return true }, func() (net.Listener, error) { return nil, fails }); !errors.Is(err, fails) {
		t.Errorf("%v", err)
	}
}

// The file of a unix socket outlives its listeners. A socket whose file is gone is not
// used again.
func TestUnixSocketStaysOpen(t *testing.T) {
	d := testListeners(t)
	path := filepath.Join(t.TempDir(), "s")
	open := func() *Listener {
		t.Helper()
		o, err := d.Open("socket", func(at net.Addr) bool { return sameFile(at, path) }, func() (net.Listener, error) { return listenUnix(path) })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { o.Close() })
		return o
	}
	for range 2 {
		open().Close()
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	open()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("a socket whose file is gone was used again: %v", err)
	}
	c.Close()
}

// After Stop a server continues with its connections, and new connections reach the next
// server.
func TestStoppedListener(t *testing.T) {
	d := testListeners(t)
	serve := func(o *Listener, says string) (*http.Server, chan error) {
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, says) })}
		ended := make(chan error, 1)
		go func() { ended <- s.Serve(o) }()
		return s, ended
	}
	o := d.openAt(t, "gateway", "127.0.0.1:0")
	at := o.Addr().String()
	first, firstEnded := serve(o, "first")
	get := func(c *http.Client) string {
		res, err := c.Get("http://" + at)
		if err != nil {
			return err.Error()
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		return fmt.Sprint(string(b), err)
	}
	inside := &http.Client{Transport: &http.Transport{}, Timeout: time.Minute}
	outside := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	if got := get(inside); got != "first<nil>" {
		t.Fatal(got)
	}
	o.Stop()
	heard := make(chan string, 1)
	go func() { heard <- get(outside) }()
	for range 10 {
		if got := get(inside); got != "first<nil>" {
			t.Errorf("an open connection gets %q", got)
		}
	}
	select {
	case err := <-firstEnded:
		t.Errorf("the server ended with Stop: %v", err)
	default:
	}
	second, secondEnded := serve(d.openAt(t, "gateway", at), "second")
	if got := <-heard; got != "second<nil>" {
		t.Errorf("a connection after Stop gets %q", got)
	}
	inside.CloseIdleConnections()
	for s, ended := range map[*http.Server]chan error{first: firstEnded, second: secondEnded} {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}
}

func sameFile(at net.Addr, path string) bool {
	_, err := os.Lstat(path)
	return err == nil && at.String() == path
}

func listenUnix(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return net.Listen("unix", path)
}
