package agent

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
		{at("127.0.0.1", 7070), "127.0.0.1:0", true}, // any port will do
		{at("127.0.0.1", 7070), "0.0.0.0:7070", false},
		{at("::", 7070), "0.0.0.0:7070", true},
		{at("::", 7070), ":7070", true},
		{at("::", 7070), "[::]:7070", true},
		{at("::", 7070), "127.0.0.1:7070", false},
		{at("::1", 7070), "[::1]:7070", true},
		{at("127.0.0.1", 7070), "no port", false},
		{&net.UnixAddr{Name: "/run/s", Net: "unix"}, "127.0.0.1:7070", false},
	} {
		if got := sameTCP(c.at, c.want); got != c.same {
			t.Errorf("%v is %s: %v, want %v", c.at, c.want, got, c.same)
		}
	}
	// Package net really listens where this says.
	for _, want := range []string{"127.0.0.1:0", "0.0.0.0:0", ":0", "localhost:0"} {
		l, err := net.Listen("tcp", want)
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		if !sameTCP(l.Addr(), want) {
			t.Errorf("who listens on %s gets %v, which is taken for another", want, l.Addr())
		}
	}
}

func testDoors(t *testing.T) *doors {
	d := newDoors(nil, slog.New(slog.NewTextHandler(t.Output(), nil)))
	t.Cleanup(d.close)
	return d
}

func (d *doors) openAt(t *testing.T, name, addr string) *door {
	t.Helper()
	o, err := d.open(name, func(at net.Addr) bool { return sameTCP(at, addr) }, func() (net.Listener, error) { return net.Listen("tcp", addr) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.Close() })
	return o
}

// TestDoorsStayOpen: a door that is opened again is the same socket, and one that
// is wanted elsewhere is another.
func TestDoorsStayOpen(t *testing.T) {
	d := testDoors(t)
	first := d.openAt(t, "gateway", "127.0.0.1:0")
	at := first.Addr().String()
	first.Close()
	again := d.openAt(t, "gateway", at)
	if again.Addr().String() != at {
		t.Errorf("it was %s, is %v", at, again.Addr())
	}
	elsewhere := d.openAt(t, "gateway", "127.0.0.2:0")
	again.Close()
	if c, err := net.Dial("tcp", at); err == nil {
		c.Close()
		t.Errorf("%s is open, and nobody wants it", at)
	}
	d.keepOnly("api")
	elsewhere.Close()
	if c, err := net.Dial("tcp", elsewhere.Addr().String()); err == nil {
		c.Close()
		t.Errorf("%v is open, and nobody wants it", elsewhere.Addr())
	}
	fails := errors.New("taken")
	if _, err := d.open("api", func(net.Addr) bool { return true }, func() (net.Listener, error) { return nil, fails }); !errors.Is(err, fails) {
		t.Errorf("%v", err)
	}
}

// TestDoorOfAUnixSocket: its file outlives its listeners, and a file of another
// is not taken for it.
func TestDoorOfAUnixSocket(t *testing.T) {
	d := testDoors(t)
	path := filepath.Join(t.TempDir(), "s")
	open := func() *door {
		t.Helper()
		o, err := d.open("socket", func(at net.Addr) bool { return sameSocket(at, path) }, func() (net.Listener, error) { return listenSocket(path) })
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
		t.Fatalf("a socket whose file is gone was taken for a good one: %v", err)
	}
	c.Close()
}

// TestDoorThatIsShut: its server goes on with those who are in, and who comes then
// is the next server's.
func TestDoorThatIsShut(t *testing.T) {
	d := testDoors(t)
	serve := func(o *door, says string) (*http.Server, chan error) {
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
	o.shut()
	heard := make(chan string, 1)
	go func() { heard <- get(outside) }()
	for range 10 {
		if got := get(inside); got != "first<nil>" {
			t.Errorf("who is in hears %q", got)
		}
	}
	select {
	case err := <-firstEnded:
		t.Errorf("the server ended when its door was shut: %v", err)
	default:
	}
	second, secondEnded := serve(d.openAt(t, "gateway", at), "second")
	if got := <-heard; got != "second<nil>" {
		t.Errorf("who came when it was shut hears %q", got)
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
