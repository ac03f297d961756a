package main

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/chromedp/chromedp/kb"
	"github.com/coder/websocket"

	"holdfast/test/browser"
	"holdfast/test/poll"
)

const screen = ".xterm-rows" // where xterm.js draws

// proxy forwards requests to servers as the gateway does, and removes a path prefix. Tests
// can change its behaviour for /ws.
type proxy struct {
	url     string // of the page
	target  atomic.Pointer[demo]
	closing atomic.Int32 // close code for the next WebSocket; 0 forwards it
	refuse  atomic.Bool  // answer 502 to WebSockets
}

func proxied(t *testing.T, d *demo) *proxy {
	t.Helper()
	p := &proxy{}
	p.target.Store(d)
	forward := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: "http", Host: p.target.Load().addr})
		r.SetXForwarded()
		r.Out.Header.Set("X-Forwarded-Prefix", "/s/alice")
	}}
	s := httptest.NewServer(http.StripPrefix("/s/alice", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch code := p.closing.Load(); {
		case r.URL.Path != "/ws":
		case p.refuse.Load():
			w.WriteHeader(http.StatusBadGateway)
			return
		case code != 0:
			p.closing.Store(0)
			c, err := websocket.Accept(w, r, nil)
			if err != nil {
				t.Errorf("accept: %v", err)
				return
			}
			_ = c.Close(websocket.StatusCode(code), "test") // the browser may have disconnected
			return
		}
		forward.ServeHTTP(w, r)
	})))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	})
	p.url = s.URL + "/s/alice/"
	return p
}

func connected(t *testing.T, p *browser.Page) {
	t.Helper()
	p.Wait(t, `document.body.dataset.state === "open"`)
	p.WaitText(t, screen, "$")
}

func TestBrowserTerminal(t *testing.T) {
	d := serving(t)
	p := browser.Start(t).Open(t, proxied(t, d).url)
	connected(t, p)
	for id, want := range map[string]string{"session": "alice", "epoch": "17", "host": hostname(t), "people": "1", "message": "Connected"} {
		if got := p.Text(t, "#"+id); got != want {
			t.Errorf("#%s has the text %q, want %q", id, got, want)
		}
	}
	p.Type(t, "echo the an''swer is $((6*7))\r") // without a click: the terminal has the focus
	p.WaitText(t, screen, "the answer is 42")

	before := browser.Eval[string](t, p, `document.querySelector(".xterm-rows").childElementCount + ""`)
	p.Size(t, 700, 420)
	p.Wait(t, `document.querySelector(".xterm-rows").childElementCount < `+before)
	p.Type(t, "clear; stty size\r")
	rows := browser.Eval[string](t, p, `document.querySelector(".xterm-rows").childElementCount + " "`)
	p.WaitText(t, screen, rows)

	// Each kind of colour is a style that the policy must allow.
	p.Type(t, `printf '\033[31mred \033[38;5;208morange \033[38;2;1;200;3mtr''ue\033[0m\n'`+"\r")
	p.WaitText(t, screen, "red orange true")
	if label := browser.Eval[string](t, p, `document.activeElement.getAttribute("aria-label")`); !strings.HasPrefix(label, "Terminal") {
		t.Errorf("the focus is on the element labelled %q", label)
	}
	p.Clean(t)
}

func TestBrowsersShareTheContainer(t *testing.T) {
	b, g := browser.Start(t), proxied(t, serving(t))
	first := b.Open(t, g.url)
	connected(t, first)
	second := b.Open(t, g.url)
	connected(t, second)
	first.WaitText(t, "#people", "2")
	file := filepath.Join(t.TempDir(), "note")
	second.Type(t, "echo from the other > "+file+"\r")
	poll.Until(t, "the file", func() bool { _, err := os.Stat(file); return err == nil })
	first.Type(t, "cat "+file+"\r")
	first.WaitText(t, screen, "from the other")
	first.Clean(t)
	second.Clean(t)
}

func TestBrowserComesBack(t *testing.T) {
	old, next := serving(t), serving(t)
	g := proxied(t, old)
	p := browser.Start(t).Open(t, g.url)
	connected(t, p)
	p.Type(t, "echo fir''st\r")
	p.WaitText(t, screen, "first")

	t.Log("the server dies, and the next connection is closed with 1012")
	g.closing.Store(int32(websocket.StatusServiceRestart))
	if err := old.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	g.target.Store(next)
	p.WaitText(t, screen, "connection lost; reconnecting")
	p.WaitText(t, screen, "the session is moving; reconnecting")
	p.WaitText(t, screen, "first") // the notes do not overwrite output
	p.WaitText(t, screen, "$")
	connected(t, p)
	p.Type(t, "echo ba''ck\r")
	p.WaitText(t, screen, "back")

	t.Log("the server does not answer for a while")
	g.refuse.Store(true)
	if err := next.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.Wait(t, `document.body.dataset.state === "lost"`)
	p.WaitText(t, "#message", "Next try in")
	g.target.Store(serving(t))
	g.refuse.Store(false)
	p.Wait(t, `document.body.dataset.state === "open"`)
	p.Type(t, "echo bac''k again\r")
	p.WaitText(t, screen, "back again")
}

func TestBrowserSaysThatTheSessionMoves(t *testing.T) {
	g := proxied(t, serving(t))
	g.closing.Store(int32(websocket.StatusServiceRestart))
	p := browser.Start(t).Open(t, g.url)
	p.WaitText(t, screen, "the session is moving; reconnecting")
	connected(t, p)
	p.Clean(t) // immediately, without a failed attempt
}

func TestBrowserShellEnds(t *testing.T) {
	p := browser.Start(t).Open(t, proxied(t, serving(t)).url)
	connected(t, p)
	p.Type(t, "exit\r")
	p.Wait(t, `document.body.dataset.state === "ended"`)
	p.WaitText(t, "#again", "New shell")
	p.Type(t, "\r")
	p.Wait(t, `document.body.dataset.state === "open"`)
	p.Type(t, "echo a ne''w one\r")
	p.WaitText(t, screen, "a new one")
	p.Type(t, "exit\r")
	p.Wait(t, `document.body.dataset.state === "ended"`)
	p.Click(t, "#again")
	p.Wait(t, `document.body.dataset.state === "open"`)
	p.Clean(t)
}

func TestBrowserWithoutAMouse(t *testing.T) {
	p := browser.Start(t).Open(t, proxied(t, serving(t)).url)
	connected(t, p)
	p.Type(t, kb.F6)
	p.Wait(t, `document.activeElement.id === "reader"`)
	p.Type(t, " ") // switches the screen reader's mode on
	p.Wait(t, `document.querySelector(".xterm-accessibility") !== null`)
	p.Type(t, kb.F6)
	p.Type(t, "echo spo''ken\r")
	p.WaitText(t, ".xterm-accessibility", "spoken")
	p.Clean(t)
}

func TestBrowserOnAPhone(t *testing.T) {
	p := browser.Start(t).Blank(t)
	p.Phone(t)
	p.Go(t, proxied(t, serving(t)).url)
	connected(t, p)
	// The shell ignores an interrupt before it has started a program.
	p.Type(t, "sh -c \"echo ru''ns; exec sleep 1000\"\r")
	p.WaitText(t, screen, "runs")
	p.Click(t, `[data-key="interrupt"]`)
	p.WaitText(t, screen, "^C")
	p.Type(t, "echo sto''pped\r")
	p.WaitText(t, screen, "stopped")
	if wide := browser.Eval[bool](t, p, `document.documentElement.scrollWidth > innerWidth`); wide {
		t.Error("the page is wider than the phone")
	}
	p.Clean(t)
}
