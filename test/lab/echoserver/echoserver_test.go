package echoserver_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"holdfast/test/lab/echoserver"
)

func TestMain(m *testing.M) {
	code := m.Run()
	http.DefaultClient.CloseIdleConnections()
	if err := goleak.Find(); err != nil && code == 0 {
		os.Stderr.WriteString(err.Error())
		code = 1
	}
	os.Exit(code)
}

// serve runs the server and returns its address. end stops the server.
func serve(t *testing.T) (addr string, end func()) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- echoserver.Serve(ctx, ln) }()
	ended := false
	end = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the server ended with %v", err)
		}
	}
	t.Cleanup(end)
	return ln.Addr().String(), end
}

func TestTell(t *testing.T) {
	t.Setenv("HOLDFAST_SESSION", "alice")
	t.Setenv("HOLDFAST_EPOCH", "7")
	addr, _ := serve(t)
	req, err := http.NewRequest(http.MethodPut, "http://"+addr+"/a%20b?c=d", strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Forwarded-Prefix", "/s/alice")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var r echoserver.Reply
	if err := json.NewDecoder(res.Body).Decode(&r); err != nil {
		t.Fatal(err)
	}
	if r.Method != "PUT" || r.Path != "/a%20b?c=d" || r.Host != addr || r.Session != "alice" || r.Epoch != "7" ||
		r.Header.Get("X-Forwarded-Prefix") != "/s/alice" {
		t.Errorf("%+v", r)
	}
}

func TestHealth(t *testing.T) {
	addr, _ := serve(t)
	res, err := http.Get("http://" + addr + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusNoContent {
		t.Errorf("status %d", res.StatusCode)
	}
}

// A stream is not buffered: a line arrives while the stream continues.
func TestStream(t *testing.T) {
	addr, end := serve(t)
	res, err := http.Get("http://" + addr + "/stream?n=2&every=1ms")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if all, err := io.ReadAll(res.Body); err != nil || string(all) != "tick 0\ntick 1\n" {
		t.Errorf("%q, %v", all, err)
	}
	endless, err := http.Get("http://" + addr + "/stream?n=100000&every=1h")
	if err != nil {
		t.Fatal(err)
	}
	defer endless.Body.Close()
	if line, err := bufio.NewReader(endless.Body).ReadString('\n'); err != nil || line != "tick 0\n" {
		t.Errorf("%q, %v", line, err)
	}
	end() // with the stream open
}

func TestWebSocket(t *testing.T) {
	addr, end := serve(t)
	c, _, err := websocket.Dial(t.Context(), "ws://"+addr+"/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	c.SetReadLimit(1 << 20)
	for _, want := range []string{"", "hello", strings.Repeat("x", 512<<10)} {
		if err := c.Write(t.Context(), websocket.MessageText, []byte(want)); err != nil {
			t.Fatal(err)
		}
		kind, got, err := c.Read(t.Context())
		if err != nil || kind != websocket.MessageText || string(got) != want {
			t.Fatalf("%d bytes of kind %v for %d: %v", len(got), kind, len(want), err)
		}
	}
	end()
	if _, _, err := c.Read(t.Context()); err == nil {
		t.Error("the socket outlives the server")
	}
}
