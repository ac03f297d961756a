package main

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"

	"holdfast/test/poll"
)

func TestTypeAndSee(t *testing.T) {
	c := serving(t).dial(t, "rows=24&cols=80")
	c.say(t, "echo h''i") // so that the echo of the line does not match
	c.see(t, `hi\r\n`)
	c.see(t, `alice:\S*\$ `)
	want := status{identity{"alice", "17", hostname(t)}, 1}
	if c.crowd(t, 1); c.last != want {
		t.Errorf("status %+v, want %+v", c.last, want)
	}
}

func hostname(t *testing.T) string {
	t.Helper()
	h, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestResize(t *testing.T) {
	c := serving(t).dial(t, "rows=30&cols=100")
	ask := func() string {
		t.Helper()
		c.say(t, "stty size")
		return c.see(t, `(\d+ \d+)\r\n`)
	}
	if got := ask(); got != "30 100" {
		t.Errorf("started with %s, want 30 100", got)
	}
	for _, tt := range []struct{ message, want string }{
		{`{"rows":40,"cols":120}`, "40 120"},
		{`{"rows":99999,"cols":-5}`, "1000 1"},
		{`{}`, "1 1"},
		{`{"rows":25,"cols":90}`, "25 90"},
	} {
		c.write(t, websocket.MessageText, []byte(tt.message))
		if got := ask(); got != tt.want {
			t.Errorf("%s made it %s, want %s", tt.message, got, tt.want)
		}
	}
}

func TestEveryoneHasAShell(t *testing.T) {
	const people = 12
	d := serving(t)
	first := d.dial(t, "")
	shells := map[int]bool{first.shell(t): true}
	var others []*client
	for range people - 1 {
		c := d.dial(t, "")
		shells[c.shell(t)] = true
		others = append(others, c)
	}
	if len(shells) != people {
		t.Errorf("%d shells for %d browsers", len(shells), people)
	}
	first.crowd(t, people)
	for _, c := range others {
		if err := c.conn.Close(websocket.StatusNormalClosure, ""); err != nil {
			t.Errorf("leave: %v", err)
		}
	}
	first.crowd(t, 1)
	if got := d.children(t); len(got) != 1 {
		t.Errorf("children %v remain, want only the first shell", got)
	}
}

func TestNoMoreThanTheLimit(t *testing.T) {
	d := serving(t)
	var in []*client
	for range maxShells {
		in = append(in, d.dial(t, ""))
	}
	in[0].crowd(t, maxShells)
	if code := d.dial(t, "").ended(t); code != websocket.StatusTryAgainLater {
		t.Errorf("the connection over the limit was closed with %d, want 1013", code)
	}
	if err := in[1].conn.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Fatal(err)
	}
	in[0].crowd(t, maxShells-1)
	d.dial(t, "").shell(t)
}

func TestShellEndsWithItsSocket(t *testing.T) {
	for name, line := range map[string]string{
		"at the prompt":   "echo no''w",
		"deaf to hangups": "trap '' HUP; echo no''w; while :; do :; done",
		// The program prints now: then it has the terminal, and receives the hangup.
		"behind a program": `sh -c "echo no''w; exec sleep 1000"`,
	} {
		t.Run(name, func(t *testing.T) {
			d := serving(t)
			stays, goes := d.dial(t, ""), d.dial(t, "")
			kept, pid := stays.shell(t), goes.shell(t)
			goes.say(t, line)
			goes.see(t, "now")
			if err := goes.conn.CloseNow(); err != nil { // no close frame, as when a laptop is shut
				t.Fatal(err)
			}
			poll.Until(t, "the shell to be reaped", func() bool { return gone(pid) })
			poll.Until(t, "its programs to be reaped", func() bool { return len(d.children(t)) == 1 })
			stays.crowd(t, 1)
			if got := stays.shell(t); got != kept {
				t.Errorf("the other shell had pid %d and has pid %d", kept, got)
			}
		})
	}
}

func TestOrphansAreReaped(t *testing.T) {
	d := serving(t)
	c := d.dial(t, "")
	c.say(t, "(sleep 1000 & echo orphan=$!.)")
	orphan, err := strconv.Atoi(c.see(t, `orphan=(\d+)\.`))
	if err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the orphan to come to the server", func() bool { return parent(orphan) == d.cmd.Process.Pid })
	if err := unix.Kill(orphan, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the orphan to be reaped", func() bool { return gone(orphan) })
	c.shell(t)
}

func TestExit(t *testing.T) {
	c := serving(t).dial(t, "")
	c.say(t, "echo b''ye; exit")
	c.see(t, `bye\r\n`)
	if code := c.ended(t); code != websocket.StatusNormalClosure {
		t.Errorf("closed with %d, want 1000", code)
	}
}

func TestBadMessages(t *testing.T) {
	d := serving(t)
	for name, tt := range map[string]struct {
		kind websocket.MessageType
		body string
		want websocket.StatusCode
	}{
		"no size":  {websocket.MessageText, "hello", websocket.StatusUnsupportedData},
		"too long": {websocket.MessageBinary, strings.Repeat("x", maxMessage+1), websocket.StatusMessageTooBig},
	} {
		t.Run(name, func(t *testing.T) {
			c := d.dial(t, "")
			pid := c.shell(t)
			c.write(t, tt.kind, []byte(tt.body))
			if code := c.ended(t); code != tt.want {
				t.Errorf("closed with %d, want %d", code, tt.want)
			}
			poll.Until(t, "the shell to be reaped", func() bool { return gone(pid) })
		})
	}
}

// A program that never reads its input fills the terminal's buffers. The server must
// continue to read the socket, or it would miss pongs and the browser's close.
func TestAFullLineHoldsNobodyUp(t *testing.T) {
	c := serving(t).dial(t, "")
	c.say(t, "stty raw -echo; echo r''aw; sleep 1000")
	c.see(t, `raw`)
	for range 3 {
		c.send(t, bytes.Repeat([]byte("x"), maxMessage))
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for c.next() == nil { // reading handles pongs
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := c.conn.Ping(ctx); err != nil {
		t.Errorf("the server does not answer a ping: %v", err)
	}
	_ = c.conn.CloseNow()
	<-read
}

func TestOnlyItsOwnPagesMayConnect(t *testing.T) {
	d := serving(t)
	for name, tt := range map[string]struct {
		header http.Header
		ok     bool
	}{
		"no browser":       {http.Header{}, true},
		"own page":         {http.Header{"Origin": {"http://" + d.addr}}, true},
		"through gateway":  {http.Header{"Origin": {"https://box.example"}, "X-Forwarded-Host": {"box.example"}}, true},
		"foreign page":     {http.Header{"Origin": {"http://evil.example"}}, false},
		"foreign, gateway": {http.Header{"Origin": {"http://evil.example"}, "X-Forwarded-Host": {"box.example"}}, false},
		"a file":           {http.Header{"Origin": {"null"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			c, resp, err := websocket.Dial(ctx, "ws://"+d.addr+"/ws", &websocket.DialOptions{HTTPHeader: tt.header})
			switch {
			case tt.ok && err != nil:
				t.Errorf("refused: %v", err)
			case !tt.ok && (err == nil || resp.StatusCode != http.StatusForbidden):
				t.Errorf("answered with %d, want 403", resp.StatusCode)
			}
			if err == nil {
				_ = c.CloseNow()
			}
		})
	}
}

func TestStop(t *testing.T) {
	d := serving(t)
	c := d.dial(t, "")
	pid := c.shell(t)
	if err := d.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := c.ended(t); code != websocket.StatusGoingAway {
		t.Errorf("closed with %d, want 1001", code)
	}
	if state, err := d.cmd.Process.Wait(); err != nil || !state.Success() {
		t.Errorf("ended with %v, %v", state, err)
	}
	if !gone(pid) {
		t.Errorf("shell %d outlives the server", pid)
	}
}

func TestFiles(t *testing.T) {
	d := serving(t)
	get := func(path, etag string) *http.Response {
		t.Helper()
		req, err := http.NewRequest(http.MethodGet, "http://"+d.addr+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("If-None-Match", etag)
		req.Close = true
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp
	}
	page := get("/", "")
	if page.StatusCode != http.StatusOK || page.Header.Get("Content-Security-Policy") != policy {
		t.Errorf("/ answers %s with %v", page.Status, page.Header)
	}
	for path, want := range map[string]int{
		"/healthz": 200, "/vendor/xterm.mjs": 200, "/vendor/LICENSE.xterm.txt": 200, "/none": 404, "/ws": 426,
	} {
		if got := get(path, "").StatusCode; got != want {
			t.Errorf("%s answers %d, want %d", path, got, want)
		}
	}
	if got := get("/page.js", page.Header.Get("ETag")).StatusCode; got != http.StatusNotModified {
		t.Errorf("a file that has not changed answers %d, want 304", got)
	}
}
