package gateway

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/test/poll"
)

// eachVersion calls f with a gateway and a client of HTTP/1.1, and of HTTP/2.
func eachVersion(t *testing.T, handler http.HandlerFunc, change func(*Config), f func(t *testing.T, x *fixture, c *http.Client, url string)) {
	t.Run("HTTP/1.1", func(t *testing.T) {
		x := start(t, handler, change)
		f(t, x, x.client, "http://"+x.addr+"/s/alice/")
	})
	t.Run("HTTP/2", func(t *testing.T) {
		x := start(t, handler, secure(t, change))
		f(t, x, x.clientAt("127.0.0.1"), "https://"+x.addr+"/s/alice/")
	})
}

// drip is a body that never ends: a byte every so often.
type drip struct{ pause time.Duration }

func (d drip) Read(b []byte) (int, error) {
	time.Sleep(d.pause)
	b[0] = 'x'
	return 1, nil
}

// A body that does not arrive ends with 408, and so does one that arrives byte by byte.
func TestSlowBodyEnds(t *testing.T) {
	eachVersion(t, func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) },
		func(c *Config) { c.BodyTimeout = 200 * time.Millisecond },
		func(t *testing.T, x *fixture, c *http.Client, url string) {
			silent, feed := io.Pipe()
			defer feed.Close()
			defer time.AfterFunc(patience, func() { feed.Close() }).Stop() // a client of HTTP/1.1 waits for its body
			for name, body := range map[string]io.Reader{"silent": silent, "dripping": drip{10 * time.Millisecond}} {
				resp, err := c.Post(url, "text/plain", body)
				if err != nil {
					t.Errorf("%s: %v", name, err)
					continue
				}
				if b, _ := io.ReadAll(resp.Body); resp.StatusCode != 408 || !bytes.Contains(b, []byte("too slowly")) {
					t.Errorf("%s: %s %s", name, resp.Status, b)
				}
				resp.Body.Close()
			}
			poll.Until(t, "no request is left", func() bool { return x.gateway.slots.count() == 0 })
		})
}

// A response that its client does not read ends.
func TestUnreadResponseEnds(t *testing.T) {
	eachVersion(t, func(w http.ResponseWriter, r *http.Request) {
		for block := make([]byte, 1<<20); r.Context().Err() == nil; {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	}, func(c *Config) { c.WriteTimeout = 200 * time.Millisecond },
		func(t *testing.T, x *fixture, c *http.Client, url string) {
			resp, err := c.Get(url)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			poll.Until(t, "the request has ended", func() bool { return x.gateway.slots.count() == 0 })
			if _, err := io.Copy(io.Discard, resp.Body); err == nil {
				t.Error("the client takes the response for complete")
			}
			if n := valueOf(t, x.gateway.metrics.slowReaders); n != 1 {
				t.Errorf("%v counted", n)
			}
		})
}

// A server that is silent does not make its client slow: in a long poll, an event
// stream, a conversation that has begun, and a gRPC stream that has not.
func TestSilentServerIsNoSlowClient(t *testing.T) {
	const limit = 50 * time.Millisecond
	eachVersion(t, func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		rc.EnableFullDuplex()
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		if r.Header.Get("Begin") != "" {
			rc.Flush()
		}
		time.Sleep(4 * limit)
		io.WriteString(w, "late,")
		rc.Flush()
		io.Copy(w, r.Body)
	}, func(c *Config) { c.BodyTimeout, c.WriteTimeout = limit, patience },
		func(t *testing.T, x *fixture, c *http.Client, url string) {
			for _, kind := range []struct{ name, method, content, begin string }{
				{"long poll", "GET", "", ""}, {"event stream", "GET", "text/event-stream", "1"},
				{"conversation", "POST", "", "1"}, {"gRPC", "POST", "application/grpc+proto", ""},
			} {
				var body io.Reader
				if kind.method == "POST" {
					out, in := io.Pipe()
					body = out
					go func() {
						io.WriteString(in, "begun,") // a server of another node sees a request with its first byte
						time.Sleep(8 * limit)
						io.WriteString(in, "end")
						in.Close()
					}()
				}
				req, err := http.NewRequest(kind.method, url, body)
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Content-Type", kind.content)
				req.Header.Set("Begin", kind.begin)
				resp, err := c.Do(req)
				if err != nil {
					t.Errorf("%s: %v", kind.name, err)
					continue
				}
				b, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if want := map[bool]string{true: "late,begun,end", false: "late,"}[body != nil]; string(b) != want || err != nil {
					t.Errorf("%s: %q, %v", kind.name, b, err)
				}
			}
		})
}

// recorded are the deadlines that a pace sets.
type recorded struct{ read, write time.Time }

func (r *recorded) SetReadDeadline(time.Time) error  { r.read = time.Now(); return nil }
func (r *recorded) SetWriteDeadline(time.Time) error { r.write = time.Now(); return nil }

// Only the time in which the gateway waits for the client counts.
func TestPace(t *testing.T) {
	cfg := DefaultConfig()
	for name, c := range map[string]struct {
		do                func(p *pace)
		slowBody, cutting bool
	}{
		"nothing happens": {func(*pace) { time.Sleep(time.Hour) }, false, false},
		"a silent body":   {func(p *pace) { p.begin(&p.body); time.Sleep(2 * cfg.BodyTimeout) }, true, false},
		"a body of 1 KiB in a minute": {func(p *pace) {
			for range 1024 {
				wait(p, &p.body, cfg.BodyTimeout/1025, 1)
			}
			time.Sleep(cfg.BodyTimeout)
		}, false, false},
		"a body of less": {func(p *pace) {
			for range 100 {
				wait(p, &p.body, cfg.BodyTimeout/50, 1)
			}
		}, true, false},
		"a server that reads a byte each hour": {func(p *pace) {
			for range 100 {
				wait(p, &p.body, time.Millisecond, 1)
				time.Sleep(time.Hour)
			}
		}, false, false},
		"a silent body after the response has begun": {func(p *pace) {
			p.responds(http.Header{})
			wait(p, &p.body, 10*time.Hour, 1)
		}, false, false},
		"a client that accepts a part at the last moment": {func(p *pace) {
			for range 10 {
				wait(p, &p.response, cfg.WriteTimeout-time.Second, 0)
			}
		}, false, false},
		"a client that accepts nothing": {func(p *pace) { wait(p, &p.response, 2*cfg.WriteTimeout, 0) }, false, true},
		"the client of an event stream that rests": {func(p *pace) {
			p.responds(http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}})
			wait(p, &p.response, 2*cfg.WriteTimeout, 0)
		}, false, false},
		"the client of an event stream that is gone": {func(p *pace) {
			p.responds(http.Header{"Content-Type": {"text/event-stream"}})
			wait(p, &p.response, 2*streamFactor*cfg.WriteTimeout, 0)
		}, false, true},
		"a request that has ended": {func(p *pace) {
			p.begin(&p.response)
			p.stop()
			time.Sleep(time.Hour)
		}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var p pace
				var set recorded
				p.start(cfg, &set, httptest.NewRequest("POST", "/", bytes.NewReader([]byte("body"))))
				began := time.Now()
				c.do(&p)
				synctest.Wait()
				if !set.read.IsZero() != c.slowBody || !set.write.IsZero() != c.cutting {
					t.Errorf("body ended after %v, response after %v", set.read.Sub(began), set.write.Sub(began))
				}
				if p.stop() != c.cutting {
					t.Error("stop reports something else")
				}
			})
		})
	}
}

// wait is a call that waits for the client for d, and then has n bytes.
func wait(p *pace, w *waiting, d time.Duration, n int) {
	p.begin(w)
	time.Sleep(d)
	p.end(w, n)
}

// A gRPC body has no limit from the start.
func TestStreamBodyHasNoLimit(t *testing.T) {
	for kind, want := range map[string]bool{"application/grpc": true, "Application/gRPC+json": true, "text/event-stream": true, "application/json": false, "": false} {
		if got := isStream(http.Header{"Content-Type": {kind}}); got != want {
			t.Errorf("%q: %v", kind, got)
		}
	}
}
