package protect_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/keep"
	"holdfast/internal/hosts/protect/protecttest"
	"holdfast/internal/platform/linux/proc"
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
	clients, times, pause, every := 50, 2, 50*time.Millisecond, time.Duration(0)
	if labtest.Long() {
		clients, times, pause, every = 1000, 30, time.Second, 2*time.Second
	}
	for _, server := range []string{"go", "nginx"} {
		t.Run(server, func(t *testing.T) {
			address := protecttest.FreePort(t)
			argv, echoes := echoServer(address), true
			if server == "nginx" {
				argv, echoes = nginxServer(t, address), false
			}
			pidfile := protecttest.StartFile(t, 0, argv...)
			protecttest.AwaitListening(t, address)
			restart := protecttest.Restart(pidfile, 0, 50*time.Millisecond, argv...)
			load := startPatrons(address, clients, pause, echoes)
			load.progress(t, clients, 2)
			kept, begun, took := 0, time.Now(), time.Duration(0)
			for i := range times {
				time.Sleep(time.Until(begun.Add(time.Duration(i) * every)))
				o := keepOptions(t, restart, address)
				if server == "nginx" {
					o.Addresses[0].Addr, o.Backend = netip.Addr{}, protect.NFQueue
				}
				r, err := protect.Run(t.Context(), o)
				if err != nil {
					t.Error(err)
				}
				b, _ := json.Marshal(r)
				t.Logf("%s", b)
				kept, took = kept+r.Kept.Kept, time.Since(begun)
				if every == 0 || i == times-1 {
					load.progress(t, clients, 5)
				}
				if n := load.failures(); n > 0 {
					t.Logf("%d failures", n)
				}
			}
			served, failed := load.end()
			t.Logf("%d answers, %d connections kept, a restart every %v", served, kept, took/time.Duration(times))
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

// relays returns the processes that keep connections.
func relays(t *testing.T) (pids []int) {
	t.Helper()
	all, err := proc.Host.Pids()
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range all {
		if s, err := proc.Host.Stat(pid); err == nil && s.Comm == "holdfast-relay" && s.State != 'Z' {
			pids = append(pids, pid)
		}
	}
	return pids
}

// killRelays kills the processes that keep connections, and waits for that.
func killRelays(t *testing.T) (n int) {
	t.Helper()
	for _, pid := range relays(t) {
		n++
		_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
	}
	poll.Until(t, "no relay is left", func() bool { return len(relays(t)) == 0 })
	return n
}

// A relay is killed at each step of a protect, also with the processes around it. Where the
// old server runs on, all of its clients are served, each by the connection that it had:
// what is left of the relay keeps their requests from the server for a bounded time only.
func TestRelayKilled(t *testing.T) {
	needsRoot(t)
	address := protecttest.FreePort(t)
	argv := echoServer(address)
	protecttest.StartFile(t, 0, argv...)
	protecttest.AwaitListening(t, address)
	const clients = 20
	load := startPatrons(address, clients, 5*time.Millisecond, true)
	steps, alone := []string{"drain", "command"}, []string{"kill-all"}
	if labtest.Long() {
		steps, alone = []string{"watch", "hold", "drain", "start", "command"}, []string{"kill-protect", "kill-keeper", "kill-all"}
	}
	for _, step := range steps {
		o := keepOptions(t, []string{"true"}, address)
		killed := 0
		o.Observe = func(at string) {
			if at == step {
				killed = killRelays(t)
			}
		}
		if _, err := protect.Run(t.Context(), o); err != nil || killed != 1 {
			t.Errorf("%s: %d relays killed, %v", step, killed, err)
		}
		load.progress(t, clients, 5)
	}
	for _, do := range alone {
		arg, err := json.Marshal(order{
			Addresses: []string{address}, Backend: protect.Park, LockDir: t.TempDir(), Keep: keep.Idle,
			Command: []string{"true"}, At: "drain", Do: do,
		})
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("/proc/self/exe", roleProtect, string(arg))
		cmd.Stderr = os.Stderr
		_ = cmd.Run() // how it ends is part of the case
		poll.Until(t, "no relay is left after "+do, func() bool { return len(relays(t)) == 0 })
		load.progress(t, clients, 5)
	}
	if _, failed := load.end(); len(failed) > 0 {
		t.Errorf("%d clients failed, such as: %v", len(failed), failed[0])
	}
}

// A relay is killed while it keeps the connections of a dead server, or serves them. Their
// clients see the end at once, as without it.
func TestRelayKilledWithoutTheServer(t *testing.T) {
	labtest.NeedLong(t, "TestRelayKilled has the server")
	needsRoot(t)
	address := protecttest.FreePort(t)
	argv := echoServer(address)
	pidfile := protecttest.StartFile(t, 0, argv...)
	protecttest.AwaitListening(t, address)
	const clients = 20
	load := startPatrons(address, clients, 5*time.Millisecond, true)
	for _, step := range []string{"command", "release", "later"} {
		load.progress(t, clients, 5)
		before := load.failures()
		o := keepOptions(t, protecttest.Restart(pidfile, 0, 0, argv...), address)
		killed := 0
		o.Observe = func(at string) {
			if at == step {
				killed = killRelays(t)
			}
		}
		if _, err := protect.Run(t.Context(), o); err != nil {
			t.Error(err)
		}
		if step == "later" {
			load.progress(t, clients, 5)
			killed = killRelays(t)
		}
		if killed == 0 {
			t.Errorf("%s: no relay was killed", step)
		}
		poll.Until(t, "clients see the end", func() bool { return load.failures() > before })
	}
	_, failed := load.end()
	for _, err := range failed {
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			t.Error("a client was left waiting:", err)
		}
	}
}

// A server with TLS is restarted without kept connections, and the report says why.
func TestKeepRefusesTLS(t *testing.T) {
	needsRoot(t)
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	r, err := protect.Run(t.Context(), keepOptions(t, []string{"true"}, s.Listener.Addr().String()))
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Kept.Refused) != 1 || !strings.Contains(r.Kept.Refused[0].Why, "TLS") || len(relays(t)) > 0 {
		t.Errorf("%+v, %d relays", r.Kept, len(relays(t)))
	}
}

// Redis is refused by its name, with the reason. It is not asked in another protocol, which it
// would log as an attack.
func TestKeepRefusesSessions(t *testing.T) {
	needsRoot(t)
	address, dir := protecttest.FreePort(t), t.TempDir()
	host, port := hostPort(t, address)
	s := protecttest.Start(t, 0, "redis-server", "--bind", host, "--port", port, "--dir", dir, "--save", "", "--logfile", dir+"/log")
	defer s.Kill()
	poll.Until(t, "the server answers", func() bool { return redis(address, "PING", "+PONG") == nil })
	r, err := protect.Run(t.Context(), keepOptions(t, []string{"true"}, address))
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Kept.Refused) != 1 || !strings.Contains(r.Kept.Refused[0].Why, "WATCH") || len(relays(t)) > 0 {
		t.Errorf("%+v, %d relays", r.Kept, len(relays(t)))
	}
	if b, err := os.ReadFile(dir + "/log"); err != nil || bytes.Contains(b, []byte("SECURITY")) {
		t.Errorf("%s, %v", b, err)
	}
}
