package main

import (
	"context"
	"crypto/sha1"
	"encoding/base64"
	"net/http"
	"testing"

	"github.com/coder/websocket"
)

// sameHandshake sends every upgrade with the same key, as a gateway does that keeps a
// browser's WebSocket. It hides this from its client.
type sameHandshake struct{}

const handshakeKey = "dGhlIHNhbXBsZSBub25jZQ=="

func (sameHandshake) RoundTrip(r *http.Request) (*http.Response, error) {
	own := r.Header.Get("Sec-WebSocket-Key")
	r = r.Clone(r.Context())
	r.Header.Set("Sec-WebSocket-Key", handshakeKey)
	res, err := http.DefaultTransport.RoundTrip(r)
	if err == nil {
		sum := sha1.Sum([]byte(own + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) // RFC 6455, 1.3
		res.Header.Set("Sec-WebSocket-Accept", base64.StdEncoding.EncodeToString(sum[:]))
	}
	return res, err
}

func (d *demo) dialAgain(t *testing.T) *client {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, _, err := websocket.Dial(ctx, "ws://"+d.addr+"/ws?rows=24&cols=80", &websocket.DialOptions{HTTPClient: &http.Client{Transport: sameHandshake{}}})
	if err != nil {
		t.Fatalf("dial: %v", err)
	}
	c.SetReadLimit(1 << 20)
	t.Cleanup(func() { _ = c.CloseNow() })
	return &client{conn: c}
}

// If a connection is lost, its shell continues with the next connection of the same
// handshake, also if the server did not notice the loss. If a browser closes its
// connection, the shell ends.
func TestShellLingers(t *testing.T) {
	t.Setenv(lingerEnv, "1m")
	d := serving(t)
	first := d.dialAgain(t)
	first.say(t, "x=kept; echo o''k")
	first.see(t, `ok\r\n`)
	_ = first.conn.CloseNow()

	second := d.dialAgain(t)
	second.say(t, "echo it is $x")
	second.see(t, `it is kept\r\n`)

	third := d.dialAgain(t) // the second connection is still open
	third.say(t, "echo again $x")
	third.see(t, `again kept\r\n`)
	if err := third.conn.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Error(err)
	}

	fourth := d.dialAgain(t)
	fourth.say(t, "echo now ${x:-nothing}")
	fourth.see(t, `now nothing\r\n`)

	other := d.dial(t, "rows=24&cols=80")
	other.say(t, "echo other ${x:-nothing}")
	other.see(t, `other nothing\r\n`)
}
