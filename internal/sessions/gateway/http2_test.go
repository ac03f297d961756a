package gateway

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"holdfast/test/poll"
)

// rawHTTP2 is a client that sends single frames.
type rawHTTP2 struct {
	*http2.Framer
	t    *testing.T
	conn *tls.Conn
	text bytes.Buffer
	enc  *hpack.Encoder
}

func (f *fixture) http2(settings ...http2.Setting) *rawHTTP2 {
	f.t.Helper()
	conn := tls.Client(f.dial(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	c := &rawHTTP2{Framer: http2.NewFramer(conn, conn), t: f.t, conn: conn}
	c.enc = hpack.NewEncoder(&c.text)
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		f.t.Fatal(err)
	}
	c.do(c.WriteSettings(settings...))
	return c
}

func (c *rawHTTP2) do(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// header returns the header block of a GET with more fields.
func (c *rawHTTP2) header(path string, more ...string) []byte {
	c.text.Reset()
	for _, f := range append([][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "localhost"}, {":path", path}}, pairs(more)...) {
		c.do(c.enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}))
	}
	return bytes.Clone(c.text.Bytes())
}

func pairs(list []string) (all [][2]string) {
	for i := 0; i < len(list); i += 2 {
		all = append(all, [2]string{list[i], list[i+1]})
	}
	return all
}

func (c *rawHTTP2) get(stream uint32, path string, more ...string) error {
	return c.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: c.header(path, more...), EndStream: true, EndHeaders: true})
}

// until reads frames until want accepts one, or the connection ends.
func (c *rawHTTP2) until(want func(http2.Frame) bool) error {
	for {
		f, err := c.ReadFrame()
		if err != nil {
			return err
		}
		if want(f) {
			return nil
		}
	}
}

// goAway reads until the gateway ends the connection with that code.
func (c *rawHTTP2) goAway(code http2.ErrCode) {
	c.t.Helper()
	if err := c.until(func(f http2.Frame) bool {
		g, ok := f.(*http2.GoAwayFrame)
		return ok && g.ErrCode == code
	}); err != nil {
		c.t.Errorf("no GOAWAY %v: %v", code, err)
	}
}

// The gateway refuses what would cost it more than its sender, and others are served.
func TestHTTP2Abuse(t *testing.T) {
	var running, reached atomic.Int64
	f := start(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hang" {
			reached.Add(1)
			running.Add(1)
			defer running.Add(-1)
			<-r.Context().Done()
		}
		io.WriteString(w, "served")
	}, secure(t, func(c *Config) { c.MaxRequestsPerClient, c.WriteTimeout = 64, 200*time.Millisecond }))
	other := f.clientAt("127.0.0.2")
	served := func(t *testing.T) {
		t.Helper()
		resp := f.getBy(other, "/s/alice/")
		if b, err := io.ReadAll(resp.Body); string(b) != "served" || err != nil {
			t.Errorf("another client: %s %q, %v", resp.Status, b, err)
		}
		resp.Body.Close()
	}

	t.Run("a frame that is too large", func(t *testing.T) {
		c := f.http2()
		c.do(c.WriteRawFrame(http2.FrameHeaders, http2.FlagHeadersEndHeaders|http2.FlagHeadersEndStream, 1, make([]byte, 16<<10+1)))
		c.goAway(http2.ErrCodeFrameSize)
	})

	t.Run("fields of a connection", func(t *testing.T) {
		c := f.http2()
		c.do(c.get(1, "/s/alice/hang", "connection", "keep-alive"))
		c.do(c.get(3, "/s/alice/hang", "te", "gzip"))
		c.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
		for range 2 {
			c.do(c.until(func(f http2.Frame) bool {
				h, ok := f.(*http2.MetaHeadersFrame)
				if ok && h.PseudoValue("status") != "400" {
					t.Errorf("stream %d: %s", h.StreamID, h.PseudoValue("status"))
				}
				return ok
			}))
		}
		if reached.Load() != 0 {
			t.Error("the session received the request")
		}
	})

	t.Run("rapid reset", func(t *testing.T) {
		c := f.http2()
		var sent error
		for i := uint32(1); i < 4000 && sent == nil; i += 2 {
			sent = errors.Join(c.get(i, "/s/alice/hang"), c.WriteRSTStream(i, http2.ErrCodeCancel))
			if i%500 == 1 {
				served(t)
			}
		}
		c.conn.Close()
		poll.Until(t, "no request is left", func() bool { return f.gateway.slots.count() == 0 && running.Load() == 0 })
		served(t)
	})

	t.Run("CONTINUATION flood", func(t *testing.T) {
		c := f.http2()
		ended := make(chan error, 1)
		go func() { ended <- c.until(func(http2.Frame) bool { return false }) }()
		err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.header("/s/alice/"), EndStream: true})
		field := bytes.Repeat([]byte("x"), 16<<10-100)
		sent := 0
		for ; err == nil && sent < 1000; sent++ {
			c.text.Reset()
			c.do(c.enc.WriteField(hpack.HeaderField{Name: "x", Value: string(field), Sensitive: true}))
			err = c.WriteContinuation(1, false, c.text.Bytes())
		}
		if err == nil {
			t.Errorf("the gateway read %d frames of one header", sent)
		}
		<-ended
		served(t)
	})

	// A client that never allows a byte of the body: the gateway's own answer waits in
	// net/http, after its handler.
	t.Run("no window", func(t *testing.T) {
		c := f.http2(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		c.do(c.get(1, "/nowhere"))
		c.do(c.get(3, "/s/alice/"))
		reset := map[uint32]bool{}
		c.do(c.until(func(f http2.Frame) bool {
			if r, ok := f.(*http2.RSTStreamFrame); ok {
				reset[r.StreamID] = true
			}
			return len(reset) == 2
		}))
		served(t)
	})
}
