package upstream

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

const directRequest = "POST /path HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody"

// direct sends directRequest and returns its connection.
func (b *bench) direct() Direct {
	b.t.Helper()
	d, err := b.pool.Direct(b.t.Context(), Key{Address: b.addr}, func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", b.addr)
	})
	if err != nil {
		b.t.Fatal(err)
	}
	if d.Sent() {
		b.t.Error("sent before Send")
	}
	if err := d.Send([]byte(directRequest)); err != nil || !d.Sent() {
		b.t.Fatal(err, d.Sent())
	}
	return d
}

// resume reads the response to directRequest, of which some bytes were received.
func (b *bench) resume(d Direct, received string) string {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), "POST", "http://x/path", strings.NewReader("body"))
	if err != nil {
		b.t.Fatal(err)
	}
	b.log = log{}
	resp, err := b.pool.Resume(req, d, []byte(received), &b.log)
	if err != nil {
		return "error: " + err.Error()
	}
	return read(resp)
}

func TestDirect(t *testing.T) {
	b := to(t, answers(ok), nil)
	for range 2 {
		d := b.direct()
		var buf [1024]byte
		n, err := io.ReadFull(receiver{d}, buf[:len(ok)])
		if err != nil || string(buf[:n]) != ok {
			t.Fatalf("%q, %v", buf[:n], err)
		}
		d.End(true)
		if got := b.get(); got != "200 ok" || !b.log.reused {
			t.Errorf("%s, %+v", got, b.log)
		}
	}
	b.direct().End(false)
	if got := b.get(); got != "200 ok" || b.log.reused {
		t.Errorf("%s, %+v", got, b.log)
	}
}

type receiver struct{ Direct }

func (r receiver) Read(b []byte) (int, error) { return r.Receive(b, patience) }

// Receive waits no longer than it is told, and the response is read by Resume. The request's
// body is not sent again.
func TestResume(t *testing.T) {
	proceed := make(chan bool)
	b := to(t, func(in *bufio.Reader, c net.Conn) {
		for range proceed {
			req, err := http.ReadRequest(in)
			if err != nil {
				t.Error(err)
				return
			}
			if text, err := io.ReadAll(req.Body); string(text) != "body" || in.Buffered() > 0 {
				t.Errorf("%q, %v, %d bytes are left", text, err, in.Buffered())
			}
			io.WriteString(c, ok)
		}
	}, nil)
	d := b.direct()
	var buf [1024]byte
	if n, err := d.Receive(buf[:], 10*time.Millisecond); n != 0 || !isTimeout(err) {
		t.Errorf("%d bytes, %v", n, err)
	}
	proceed <- true
	if got := b.resume(d, ""); got != "200 ok" || b.log.answered != 1 {
		t.Errorf("%s, %+v", got, b.log)
	}
	d = b.direct() // on the same connection
	proceed <- true
	n, err := d.Receive(buf[:20], patience)
	if err != nil {
		t.Fatal(err)
	}
	if got := b.resume(d, string(buf[:n])); got != "200 ok" {
		t.Error(got)
	}
	close(proceed)
}

// The limit of Receive is not that of a later request, whose body takes longer to send.
func TestReceiveLeavesNoLimit(t *testing.T) {
	b := to(t, answers(ok), nil)
	d := b.direct()
	var buf [1024]byte
	if _, err := io.ReadFull(receiver{d}, buf[:len(ok)]); err != nil {
		t.Fatal(err)
	}
	d.conn.await(10 * time.Millisecond) // as Receive does
	d.End(true)
	time.Sleep(30 * time.Millisecond)
	resp, err := b.send(t.Context(), strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	if got := read(resp); got != "200 ok" || !b.log.reused {
		t.Errorf("%s, %+v", got, b.log)
	}
}
