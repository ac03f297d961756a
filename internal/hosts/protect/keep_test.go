package protect_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/keep"
	"holdfast/internal/hosts/protect/protecttest"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// echoMain is the main function of a server that answers with what it has received.
func echoMain(address string) int {
	l, err := net.Listen("tcp", address)
	if err != nil {
		fmt.Fprintln(os.Stderr, "server:", err)
		return 1
	}
	fmt.Fprintln(os.Stderr, "server:", http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sum := crc32.NewIEEE()
		n, err := io.Copy(sum, r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		if d, err := time.ParseDuration(r.URL.Query().Get("take")); err == nil {
			time.Sleep(d)
		}
		w.Header().Set("X-Client", r.RemoteAddr)
		fmt.Fprintf(w, "%s %s %d %d", r.Method, r.RequestURI, n, sum.Sum32())
	})))
	return 1
}

func echoServer(address string) []string { return []string{"/proc/self/exe", roleEcho, address} }

// patrons are clients that keep their connections, send one request after another, and
// never send one twice.
type patrons struct {
	address string
	echoes  bool // the server says what it has received
	stop    chan struct{}
	all     sync.WaitGroup
	served  atomic.Int64
	mu      sync.Mutex
	failed  []error
}

func startPatrons(address string, n int, pause time.Duration, echoes bool) *patrons {
	p := &patrons{address: address, echoes: echoes, stop: make(chan struct{})}
	for i := range n {
		p.all.Go(func() {
			for !p.over() {
				if err := p.visit(i, pause); err != nil {
					p.mu.Lock()
					p.failed = append(p.failed, err)
					p.mu.Unlock()
				}
			}
		})
	}
	return p
}

func (p *patrons) over() bool {
	select {
	case <-p.stop:
		return true
	default:
		return false
	}
}

// visit uses one connection until it ends. The end is an error unless the server has
// announced it, or it comes between two requests.
func (p *patrons) visit(i int, pause time.Duration) error {
	c, err := net.Dial("tcp", p.address)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer c.Close()
	r := bufio.NewReader(c)
	for n := 0; !p.over(); n++ {
		_ = c.SetDeadline(time.Now().Add(protecttest.Patience))
		pipelined := 1
		if (i+n)%4 == 3 {
			pipelined = 3
		}
		var out bytes.Buffer
		var asked []*http.Request
		var want []string
		for k := range pipelined {
			req, text := request(p.address, i, n, k)
			asked, want = append(asked, req), append(want, text)
			if err := req.Write(&out); err != nil {
				return err
			}
		}
		if _, err := c.Write(out.Bytes()); err != nil {
			return fmt.Errorf("client %d, exchange %d: send: %w", i, n, err)
		}
		for k, req := range asked {
			resp, err := http.ReadResponse(r, req)
			if err != nil {
				return fmt.Errorf("client %d, exchange %d, request %d of %d, %s: %w", i, n, k, pipelined, req.Method, err)
			}
			body, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != http.StatusOK || p.echoes && string(body) != want[k] {
				return fmt.Errorf("client %d, exchange %d: status %d, body %q, want %q, %w", i, n, resp.StatusCode, body, want[k], err)
			}
			p.served.Add(1)
			if resp.Close {
				if k == pipelined-1 {
					return nil
				}
				return fmt.Errorf("client %d: %d pipelined requests are not answered", i, pipelined-1-k)
			}
		}
		time.Sleep(time.Duration(rand.Int64N(int64(2*pause) + 1)))
	}
	return nil
}

// request returns a GET, a POST with a body, or one with a body in chunks, and what the
// server answers.
func request(address string, i, n, k int) (*http.Request, string) {
	method, path := http.MethodGet, fmt.Sprintf("/%d//%%2f/%d?x=%d;y", i, n, k)
	var body []byte
	if (n+k)%3 > 0 {
		method, body = http.MethodPost, bytes.Repeat([]byte{byte(i), byte(n), '\n'}, 1+(i*37+n*501)%9000)
	}
	req, err := http.NewRequest(method, "http://"+address+path, bytes.NewReader(body))
	if err != nil {
		panic(err)
	}
	if (n+k)%3 == 2 {
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(body)), -1
	}
	return req, fmt.Sprintf("%s %s %d %d", method, path, len(body), crc32.ChecksumIEEE(body))
}

// progress waits until the clients have had so many more answers each, on average.
func (p *patrons) progress(t *testing.T, n, each int) {
	t.Helper()
	goal := p.served.Load() + int64(n*each)
	poll.Until(t, "clients are served", func() bool { return p.served.Load() >= goal })
}

func (p *patrons) failures() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.failed)
}

func (p *patrons) end() (served int64, failed []error) {
	close(p.stop)
	p.all.Wait()
	return p.served.Load(), p.failed
}

func keepOptions(t *testing.T, command []string, address string) protect.Options {
	o := options(t, protect.Park, command, address)
	o.Drain, o.Keep, o.KeepFor = 2*time.Second, keep.Idle, 20*time.Second
	return o
}

// A server is killed and started again and again while clients with kept connections send
// requests. Not one request fails, and without protect some do.
func TestKeepOverHardRestarts(t *testing.T) {
	needsRoot(t)
	clients, times, pause := 50, 2, 20*time.Millisecond
	if labtest.Long() {
		clients, times, pause = 1000, 30, time.Second
	}
	for _, server := range []string{"go", "nginx"} {
		t.Run(server, func(t *testing.T) {
			address := protecttest.FreePort(t)
			argv, echoes := echoServer(address), true
			if server == "nginx" {
				argv, echoes = nginxServer(t, address), false
			}
			pidfile := first(t, 0, argv...)
			protecttest.AwaitListening(t, address)
			restart := protecttest.Restart(pidfile, 0, 50*time.Millisecond, argv...)
			load := startPatrons(address, clients, pause, echoes)
			load.progress(t, clients, 2)
			kept := 0
			for range times {
				r, err := protect.Run(t.Context(), keepOptions(t, restart, address))
				if err != nil {
					t.Error(err)
				}
				b, _ := json.Marshal(r)
				t.Logf("%s", b)
				kept += r.Kept.Kept
				load.progress(t, clients, 5)
				if n := load.failures(); n > 0 {
					t.Logf("%d failures", n)
				}
			}
			served, failed := load.end()
			t.Logf("%d answers, %d connections kept", served, kept)
			for i, err := range failed {
				if i == 5 {
					t.Fatalf("and %d more", len(failed)-i)
				}
				t.Error(err)
			}
			if kept == 0 {
				t.Error("no connection was kept")
			}
			load = startPatrons(address, clients, pause, echoes)
			load.progress(t, clients, 2)
			bare := exec.Command(restart[0], restart[1:]...)
			bare.Stderr = os.Stderr
			if err := bare.Run(); err != nil {
				t.Fatal(err)
			}
			load.progress(t, clients, 5)
			if _, failed := load.end(); len(failed) == 0 {
				t.Error("without protect no client failed, so the test shows nothing")
			}
		})
	}
}
