package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/sessions/gateway/closing"
	"holdfast/test/poll"
)

// Requests for a session that is starting wait, and all are served.
func TestParkedRequestsAreServedWhenReady(t *testing.T) {
	f := start(t, nil, nil)
	srv := echoBodyServer(t)
	ready := make(chan struct{})
	f.sessions.set(func(ctx context.Context, key holdfast.SessionKey) (holdfast.Route, error) {
		select {
		case <-ready:
			return holdfast.Route{Key: key, Address: srv, Epoch: 7, Left: f.left}, nil
		case <-ctx.Done():
			return holdfast.Route{}, ctx.Err()
		}
	})
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			text := fmt.Sprint("request ", i)
			if resp, got := f.do(f.request("POST", "/s/alice/", strings.NewReader(text))); got != text {
				t.Errorf("%s: %d %q", text, resp.StatusCode, got)
			}
		})
	}
	poll.Until(t, "20 requests are parked", func() bool { return valueOf(t, f.gateway.metrics.parked) == 20 })
	close(ready)
	wg.Wait()
	if n := valueOf(t, f.gateway.metrics.parked); n != 0 {
		t.Errorf("%v are still parked", n)
	}
}

func echoBodyServer(t *testing.T) (address string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).EnableFullDuplex()
		io.Copy(w, r.Body)
	})}
	go srv.Serve(ln)
	t.Cleanup(func() { srv.Close() })
	return ln.Addr().String()
}

func TestParkingIsBounded(t *testing.T) {
	f := start(t, nil, func(c *Config) { c.ParkPerKey, c.ParkTotal = 2, 3 })
	f.park()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	fill := func(path string) {
		before := valueOf(t, f.gateway.metrics.parked)
		wg.Go(func() {
			if resp, err := f.client.Do(f.request("GET", path, nil).WithContext(ctx)); err == nil {
				resp.Body.Close()
			}
		})
		poll.Until(t, "the request is parked", func() bool { return valueOf(t, f.gateway.metrics.parked) == before+1 })
	}
	refused := func(path string) {
		t.Helper()
		resp, body := f.get(path, "Accept", "application/json")
		if resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" || !strings.Contains(body, `"busy"`) {
			t.Errorf("%s: %d %s", path, resp.StatusCode, body)
		}
	}
	fill("/s/alice/")
	fill("/s/alice/")
	refused("/s/alice/") // per key
	fill("/s/bob/")
	refused("/s/carol/") // in total

	// Requests for a ready session are still served.
	f.serveAt(echoBodyServer(t))
	if resp, _ := f.get("/s/alice/"); resp.StatusCode != 200 {
		t.Errorf("ready: %d", resp.StatusCode)
	}
}

func TestParkingTimeIsBounded(t *testing.T) {
	f := start(t, nil, func(c *Config) { c.ParkTime = 20 * time.Millisecond })
	f.park()
	resp, body := f.get("/s/alice/", "Accept", "application/json")
	if resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" || !strings.Contains(body, `"parked_too_long"`) {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

// The time that a session works on a request is not parking time. A long poll whose
// session moves has the full parking time again.
func TestLongPollHasTheFullParkingTime(t *testing.T) {
	const parkTime = 400 * time.Millisecond
	f := start(t, nil, func(c *Config) { c.ParkTime = parkTime })
	left := make(chan struct{})
	bad, _ := killedBy(t, func(int64, *net.TCPConn) {
		time.Sleep(parkTime * 3 / 2)
		close(left)
	})
	good := echoBodyServer(t)
	f.sessions.set(func(ctx context.Context, key holdfast.SessionKey) (holdfast.Route, error) {
		if !closing.Closed(left) {
			return holdfast.Route{Key: key, Address: bad, Epoch: 1, Left: left}, nil
		}
		select {
		case <-time.After(20 * time.Millisecond): // the successor boots
			return holdfast.Route{Key: key, Address: good, Epoch: 2}, nil
		case <-ctx.Done():
			return holdfast.Route{}, ctx.Err()
		}
	})
	if resp, body := f.get("/s/alice/"); resp.StatusCode != 200 {
		t.Errorf("%s %s", resp.Status, body)
	}
}

// The parking time bounds the sum of all waits of a request.
func TestParkingTimeIsOneForAllWaits(t *testing.T) {
	f := start(t, nil, func(c *Config) { c.ParkTime = 100 * time.Millisecond })
	var epoch holdfast.Epoch
	noServer := closedPort(t)
	f.sessions.set(func(_ context.Context, key holdfast.SessionKey) (holdfast.Route, error) {
		epoch++ // so that the limit of a server's refusals does not apply
		return holdfast.Route{Key: key, Address: noServer, Epoch: epoch}, nil
	})
	if resp, body := f.get("/s/alice/", "Accept", "application/json"); resp.StatusCode != 503 || !strings.Contains(body, `"parked_too_long"`) {
		t.Errorf("%s %s", resp.Status, body)
	}
}

// A client that hangs up frees its place, also with an unread body.
func TestGoneClientFreesItsPlace(t *testing.T) {
	f := start(t, nil, nil)
	f.park()
	for name, request := range map[string]string{
		"without body": "GET /s/alice/ HTTP/1.1\r\nHost: x\r\n\r\n",
		"with body":    "POST /s/alice/ HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nfirst bytes",
		"chunked":      "POST /s/alice/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
		"expecting":    "POST /s/alice/ HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n",
		"upgrade":      "GET /s/alice/ HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			c := f.dial()
			io.WriteString(c, request)
			poll.Until(t, "the request is parked", func() bool { return valueOf(t, f.gateway.metrics.parked) == 1 })
			c.Close()
			poll.Until(t, "its place is free", func() bool { return valueOf(t, f.gateway.metrics.parked) == 0 })
		})
	}
}

// A stop answers parked requests with 503 at once.
func TestStopAnswersParkedRequests(t *testing.T) {
	f := start(t, nil, nil)
	f.park()
	got := make(chan int, 1)
	go func() {
		resp, err := f.client.Do(f.request("GET", "/s/alice/", nil))
		if err != nil {
			got <- -1
			return
		}
		resp.Body.Close()
		got <- resp.StatusCode
	}()
	poll.Until(t, "the request is parked", func() bool { return valueOf(t, f.gateway.metrics.parked) == 1 })
	f.stop()
	if status := <-got; status != 503 {
		t.Errorf("status %d", status)
	}
}

// A refused request is tried again with any method and body, and the session that was
// acquired is released.
func TestRefusedIsTriedAgain(t *testing.T) {
	for name, send := range map[string]func(f *fixture){
		"body": func(f *fixture) {
			text := strings.Repeat("not lost ", 10_000)
			if resp, got := f.do(f.request("POST", "/s/alice/", strings.NewReader(text))); got != text {
				f.t.Errorf("%d, %d bytes", resp.StatusCode, len(got))
			}
		},
		"upgrade": func(f *fixture) {
			_, _, resp := f.raw("GET /s/alice/ HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: any\r\n\r\n")
			if resp.StatusCode != 200 { // the server does not agree to the upgrade
				f.t.Errorf("status %d", resp.StatusCode)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, nil, nil)
			good, bad := echoBodyServer(t), closedPort(t)
			var calls atomic.Int64
			f.sessions.set(func(_ context.Context, key holdfast.SessionKey) (holdfast.Route, error) {
				r := holdfast.Route{Key: key, Address: bad, Epoch: 1}
				switch calls.Add(1) {
				case 1:
				case 2: // the server is gone before the dial
					left := make(chan struct{})
					close(left)
					r.Address, r.Left = good, left
				default:
					r.Address, r.Epoch = good, 2
				}
				return r, nil
			})
			send(f)
			f.stop()
			if n := calls.Load(); n != 3 || len(f.sessions.refused) != 2 {
				t.Errorf("%d Acquires, refused %v", n, f.sessions.refused)
			}
		})
	}
}

// If the server keeps refusing, the answer is 502 after a bounded number of tries.
func TestRefusalsAreBounded(t *testing.T) {
	f := start(t, nil, nil)
	f.serveAt(closedPort(t))
	resp, body := f.get("/s/alice/", "Accept", "application/json")
	if resp.StatusCode != 502 || !strings.Contains(body, `"refused"`) {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	f.stop()
	if n := len(f.sessions.refused); n != retries {
		t.Errorf("refused %d times", n)
	}
}

func closedPort(t *testing.T) string {
	t.Helper()
	// The port is bound and not listened on, so that no other process gets it.
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", name.(*unix.SockaddrInet4).Port)
}

// BenchmarkParkingFastPath measures the cost of a wait that ends at once.
func BenchmarkParkingFastPath(b *testing.B) {
	p := newParking(64, 4096, NewMetrics(prometheus.NewRegistry()))
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := p.wait(b.Context(), "alice", time.Minute, func(context.Context) error { return nil }); err != nil {
				b.Error(err)
			}
		}
	})
}

// A request for a session that is ready does not wait, so the limits of parking do not apply
// to it.
func TestReadySessionsDoNotPark(t *testing.T) {
	f := start(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") }, func(c *Config) { c.ParkPerKey, c.ParkTotal = 1, 1 })
	f.sessions.mu.Lock()
	acquire := f.sessions.acquire
	f.sessions.ready = func(key holdfast.SessionKey) (holdfast.Route, bool) {
		r, err := acquire(t.Context(), key)
		return r, err == nil
	}
	f.sessions.acquire = func(context.Context, holdfast.SessionKey) (holdfast.Route, error) {
		return holdfast.Route{}, errors.New("a request for a ready session was parked")
	}
	f.sessions.mu.Unlock()
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if resp, body := f.get("/s/alice/"); resp.StatusCode != 200 || body != "ok" {
				t.Errorf("%s: %s", resp.Status, body)
			}
		})
	}
	all.Wait()
	// A session is released after the last byte of its answer.
	poll.Until(t, "all sessions are released", func() bool { held, _ := f.sessions.count(); return held == 0 })
}
