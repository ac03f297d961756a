package protect_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/protecttest"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

func needsRoot(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: it needs root, and a network namespace of its own")
	}
}

// both has the two backends that hold on most kernels.
var both = []protect.Name{protect.Park, protect.NFQueue}

func options(t *testing.T, b protect.Name, command []string, addresses ...string) protect.Options {
	t.Helper()
	return protect.Options{
		Spec:  protect.Spec{Addresses: protecttest.Addresses(t, addresses...), Backend: b, Limit: protecttest.Patience},
		Drain: protecttest.Patience, Wait: protecttest.Patience,
		Command: command, Stdout: os.Stderr, Stderr: os.Stderr,
		Keeper: keeper(), LockDir: t.TempDir(), Log: quiet(),
	}
}

func noneFailed(t *testing.T, load *protecttest.Load) {
	t.Helper()
	poll.Until(t, "clients came", func() bool { return load.Total() >= 20 })
	total, failed, longest := load.Stop()
	t.Logf("%d clients, longest %v", total, longest)
	for i, err := range failed {
		if i == 5 {
			t.Fatalf("and %d more", len(failed)-i)
		}
		t.Error("a client:", err)
	}
}

// nginxServer returns a command that runs nginx on an address.
func nginxServer(t *testing.T, address string) []string {
	t.Helper()
	dir := t.TempDir()
	conf := fmt.Sprintf(`daemon off; worker_processes 2; pid %[1]s/nginx.pid; error_log %[1]s/error.log; user root;
events { worker_connections 4096; }
http { access_log off; client_body_temp_path %[1]s/b; proxy_temp_path %[1]s/p; fastcgi_temp_path %[1]s/f;
uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
server { listen %[2]s; location / { return 200 "pong\n"; } } }`, dir, address)
	path := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(path, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"nginx", "-p", dir, "-c", path}
}

// testedServer returns a command that tests nginx's configuration before it runs nginx. Each
// test listens for a moment.
func testedServer(t *testing.T, address string) []string {
	argv := nginxServer(t, address)
	return append([]string{"sh", "-c", `for n in 1 2 3 4 5; do "$0" "$@" -t -q; done; exec "$0" "$@"`}, argv...)
}

// pythonServer returns a command that runs Python's http.server, which has a backlog of 5.
func pythonServer(t *testing.T, address string) []string {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return []string{python(t), "-c", fmt.Sprintf(`
import http.server
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"pong\n")
    def log_message(self, *a): pass
http.server.HTTPServer((%q, %s), H).serve_forever()`, host, port)}
}

// python returns the path of the interpreter itself, not of a script that starts it.
func python(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		t.Fatal("these tests need python3:", err)
	}
	return strings.TrimSpace(string(out))
}

// A server is killed and started while clients connect all the time: twice, or ten times
// with -long. No client fails.
func TestHardRestart(t *testing.T) {
	needsRoot(t)
	times := 2
	if labtest.Long() {
		times = 10
	}
	const other = 65534 // the user `nobody`
	for _, s := range []struct {
		name    string
		address string
		uid     uint32
		server  func(*testing.T, string) []string
	}{
		{"Go", protecttest.FreePort(t), 0, func(_ *testing.T, a string) []string { return protecttest.GoServer(a) }},
		{"Go over IPv6", "[::1]:18081", 0, func(_ *testing.T, a string) []string { return protecttest.GoServer(a) }},
		{"nginx", protecttest.FreePort(t), 0, nginxServer},
		{"nginx after tests", protecttest.FreePort(t), 0, testedServer},
		{"Python", protecttest.FreePort(t), 0, pythonServer},
		{"another user", protecttest.FreePort(t), other, func(_ *testing.T, a string) []string { return protecttest.GoServer(a) }},
	} {
		for _, b := range both {
			t.Run(s.name+"/"+string(b), func(t *testing.T) {
				before := protecttest.Look(t)
				argv := s.server(t, s.address)
				pidfile := protecttest.StartFile(t, s.uid, argv...)
				protecttest.AwaitListening(t, s.address)
				load := protecttest.StartLoad(t, s.address, 10*time.Millisecond, nil)
				command := protecttest.Restart(pidfile, s.uid, 50*time.Millisecond, argv...)
				for range times {
					r, err := protect.Run(t.Context(), options(t, b, command, s.address))
					if err != nil {
						t.Error(err)
					}
					if r.Backend != b || r.Released.Reason != protect.NewListens || r.ExitCode != 0 {
						t.Errorf("report: %+v", r)
					}
					protecttest.NoReuseport(t, s.address)
				}
				noneFailed(t, load)
				if err := protecttest.KillFile(pidfile); err != nil {
					t.Fatal(err)
				}
				protecttest.NothingLeft(t, before)
			})
		}
	}
}

// During a hold of eight seconds, clients send their SYN several times.
func TestLongHold(t *testing.T) {
	needsRoot(t)
	for _, b := range both {
		t.Run(string(b), func(t *testing.T) {
			t.Parallel()
			address := protecttest.FreePort(t)
			argv := protecttest.GoServer(address)
			pidfile := protecttest.StartFile(t, 0, argv...)
			protecttest.AwaitListening(t, address)
			load := protecttest.StartLoad(t, address, 20*time.Millisecond, nil)
			r, err := protect.Run(t.Context(), options(t, b, protecttest.Restart(pidfile, 0, 8*time.Second, argv...), address))
			if err != nil {
				t.Fatal(err)
			}
			if r.Released.Stats.Held < 100 || r.Released.Stats.Longest < 7*time.Second {
				t.Errorf("stats: %+v", r.Released.Stats)
			}
			noneFailed(t, load)
		})
	}
}

// Three thousand clients wait at once.
func TestManyWait(t *testing.T) {
	needsRoot(t)
	const n = 3000
	for _, b := range both {
		t.Run(string(b), func(t *testing.T) {
			address := protecttest.FreePort(t)
			argv := protecttest.GoServer(address)
			pidfile := protecttest.StartFile(t, 0, argv...)
			protecttest.AwaitListening(t, address)
			k := startKeeper(t)
			spec := protect.Spec{Addresses: protecttest.Addresses(t, address), Backend: b, Limit: 2 * protecttest.Patience}
			if _, err := k.Hold(t.Context(), spec); err != nil {
				t.Fatal(err)
			}
			if err := protecttest.KillFile(pidfile); err != nil {
				t.Fatal(err)
			}
			c := protecttest.Crowd{}
			c.Come(address, n)
			// The time that any client but the first one takes.
			time.Sleep(2 * time.Second)
			next := protecttest.Start(t, 0, argv...)
			rel, ok := <-k.Released()
			if !ok || rel.Reason != protect.NewListens {
				t.Fatalf("released: %+v, %v", rel, ok)
			}
			t.Logf("%+v", rel)
			c.Wait(t)
			next.Kill()
		})
	}
}

func startKeeper(t *testing.T) *protect.Keeper {
	t.Helper()
	k, err := protect.StartKeeper(protect.KeeperOptions{Argv: keeper(), Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

// The old server answers its requests before it is killed.
func TestDrain(t *testing.T) {
	needsRoot(t)
	for _, b := range both {
		t.Run(string(b), func(t *testing.T) {
			address := protecttest.FreePort(t)
			argv := protecttest.GoServer(address)
			pidfile := protecttest.StartFile(t, 0, argv...)
			protecttest.AwaitListening(t, address)
			slow := make(chan error, 1)
			go func() {
				_, err := protecttest.Ask(address, "/?take=700ms")
				slow <- err
			}()
			awaitConns(t, address)
			// An idle client that has its answer does not delay the restart.
			// Otherwise the drain would take its full minute.
			idle, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			defer idle.Close()
			if _, err := fmt.Fprintf(idle, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			if _, err := idle.Read(make([]byte, 1000)); err != nil {
				t.Fatal(err)
			}
			r, err := protect.Run(t.Context(), options(t, b, protecttest.Restart(pidfile, 0, 0, argv...), address))
			if err != nil {
				t.Fatal(err)
			}
			if err := <-slow; err != nil {
				t.Error("a request in progress:", err)
			}
			if r.Drained.Left != 0 {
				t.Errorf("drained: %+v", r.Drained)
			}
		})
	}
}

// awaitConns waits until a server has a client.
func awaitConns(t *testing.T, address string) {
	t.Helper()
	s, err := protect.NewSockets(protecttest.Addresses(t, address))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	poll.Until(t, "a client is being served", func() bool {
		d, err := s.Drain(time.Nanosecond, false, nil)
		return err == nil && d.Left > 0
	})
}

// A drain ends at the limit of the hold, even if its own limit is longer: a client
// without an answer does not delay all others.
func TestDrainEndsWithTheHold(t *testing.T) {
	needsRoot(t)
	address := protecttest.FreePort(t)
	s := protecttest.Start(t, 0, protecttest.GoServer(address)...)
	protecttest.AwaitListening(t, address)
	slow := make(chan struct{})
	go func() {
		defer close(slow)
		_, _ = protecttest.Ask(address, "/?take=60s") // it is cut off below
	}()
	awaitConns(t, address)
	k := startKeeper(t)
	spec := protect.Spec{Addresses: protecttest.Addresses(t, address), Backend: protect.NFQueue, Limit: 2 * time.Second}
	if _, err := k.Hold(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), protecttest.Patience/2)
	defer cancel()
	if d, err := k.Drain(ctx, time.Hour); err != nil || d.Left != 1 {
		t.Errorf("drained: %+v, %v", d, err)
	}
	select {
	case rel := <-k.Released():
		if rel.Reason != protect.TimeUp {
			t.Errorf("released: %+v", rel)
		}
	case <-ctx.Done():
		t.Error("the hold exceeds its limit")
	}
	s.Kill()
	<-slow
}

// Without --drain, the restart cuts off a slow request. This shows that the test of the
// drain can fail.
func TestNoDrain(t *testing.T) {
	needsRoot(t)
	address := protecttest.FreePort(t)
	argv := protecttest.GoServer(address)
	pidfile := protecttest.StartFile(t, 0, argv...)
	protecttest.AwaitListening(t, address)
	slow := make(chan error, 1)
	go func() {
		_, err := protecttest.Ask(address, "/?take=60s")
		slow <- err
	}()
	awaitConns(t, address)
	o := options(t, protect.Auto, protecttest.Restart(pidfile, 0, 0, argv...), address)
	o.Drain = 50 * time.Millisecond
	r, err := protect.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Drained.Left != 1 {
		t.Errorf("drained: %+v", r.Drained)
	}
	if err := <-slow; err == nil {
		t.Error("a request of a minute was answered by a server that was killed")
	}
}

// A command that keeps the server's sockets, or does nothing, ends the hold.
func TestServerStays(t *testing.T) {
	needsRoot(t)
	for _, b := range both {
		t.Run(string(b), func(t *testing.T) {
			before := protecttest.Look(t)
			address := protecttest.FreePort(t)
			s := protecttest.Start(t, 0, protecttest.GoServer(address)...)
			protecttest.AwaitListening(t, address)
			load := protecttest.StartLoad(t, address, 5*time.Millisecond, nil)
			r, err := protect.Run(t.Context(), options(t, b, []string{"sleep", "0.2"}, address))
			if err != nil || r.Released.Reason != protect.OldStayed {
				t.Errorf("report: %+v, %v", r, err)
			}
			noneFailed(t, load)
			protecttest.NothingLeft(t, before)
			s.Kill()
		})
	}
}

// If the command fails and no server listens again, the clients are released at the
// limit, and the error says so.
func TestNoServerComesBack(t *testing.T) {
	needsRoot(t)
	for _, b := range both {
		t.Run(string(b), func(t *testing.T) {
			before := protecttest.Look(t)
			address := protecttest.FreePort(t)
			pidfile := protecttest.StartFile(t, 0, protecttest.GoServer(address)...)
			protecttest.AwaitListening(t, address)
			o := options(t, b, []string{"sh", "-c", `kill -9 "$(cat "$0")"; exit 3`, pidfile}, address)
			o.Limit = time.Second
			r, err := protect.Run(t.Context(), o)
			if err == nil || holdfast.HintOf(err) == "" || !strings.Contains(err.Error(), "no server listens") {
				t.Errorf("error %v, hint %q", err, holdfast.HintOf(err))
			}
			if r.ExitCode != 3 || r.Released.Reason != protect.TimeUp {
				t.Errorf("report: %+v", r)
			}
			if _, err := protecttest.Ask(address, "/"); err == nil {
				t.Error("a server answers")
			}
			protecttest.NothingLeft(t, before)
		})
	}
}

func TestBadInput(t *testing.T) {
	needsRoot(t)
	before := protecttest.Look(t)
	address := protecttest.FreePort(t)
	pidfile := protecttest.StartFile(t, 0, protecttest.GoServer(address)...)
	protecttest.AwaitListening(t, address)
	load := protecttest.StartLoad(t, address, 2*time.Millisecond, nil)
	for _, c := range []struct {
		name   string
		change func(*protect.Options)
		is     error
	}{
		{"nothing listens", func(o *protect.Options) { o.Addresses = protecttest.Addresses(t, protecttest.FreePort(t)) }, protect.ErrNothingListens},
		{"no such command", func(o *protect.Options) { o.Command = []string{"no-such-command"} }, exec.ErrNotFound},
		{"no such backend here", func(o *protect.Options) { o.Backend = protect.Migrate }, protect.ErrNoBackend},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := options(t, protect.Auto, []string{"true"}, address)
			c.change(&o)
			r, err := protect.Run(t.Context(), o)
			if !errors.Is(err, c.is) || holdfast.HintOf(err) == "" {
				t.Errorf("error %v, hint %q", err, holdfast.HintOf(err))
			}
			if r.Backend != "" {
				t.Errorf("something was held: %+v", r)
			}
		})
	}
	noneFailed(t, load)
	if err := protecttest.KillFile(pidfile); err != nil {
		t.Fatal(err)
	}
	protecttest.NothingLeft(t, before)
}

// A check reports which backend would work, and why the others would not.
func TestCheck(t *testing.T) {
	needsRoot(t)
	address := protecttest.FreePort(t)
	protecttest.Start(t, 0, protecttest.GoServer(address)...)
	protecttest.AwaitListening(t, address)
	o := options(t, protect.Auto, nil, address)
	rs, err := protect.Check(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	why := make(map[protect.Name]string)
	for _, r := range rs {
		why[r.Backend] = r.Why
	}
	if why[protect.Park] != "" || why[protect.NFQueue] != "" || !strings.Contains(why[protect.Migrate], "--overlap") {
		t.Errorf("check: %q", why)
	}
	o.Addresses = protecttest.Addresses(t, protecttest.FreePort(t))
	if _, err := protect.Check(t.Context(), o); !errors.Is(err, protect.ErrNothingListens) {
		t.Errorf("check of a port where nothing listens: %v", err)
	}
}

// ListenedBy finds the addresses of a process by its pid.
func TestListenedBy(t *testing.T) {
	needsRoot(t)
	a, b := protecttest.FreePort(t), "[::1]:18082"
	s := protecttest.Start(t, 0, protecttest.GoServer(a+","+b)...)
	protecttest.AwaitListening(t, a)
	protecttest.AwaitListening(t, b)
	pids, err := protect.Family(s.Pid())
	if err != nil {
		t.Fatal(err)
	}
	got, err := protect.ListenedBy("", pids)
	if err != nil || len(got) != 2 || got[0].String() != a || got[1].String() != b {
		t.Errorf("process %d listens on %v, %v", s.Pid(), got, err)
	}
	if _, err := protect.ListenedBy("", []int{os.Getpid()}); !errors.Is(err, protect.ErrNothingListens) {
		t.Errorf("this process, without a listener: %v", err)
	}
}

// A protect that waited for another one works in the network namespace of a process that has ended
// by then.
func TestTakenWithTheServersNamespace(t *testing.T) {
	needsRoot(t)
	address := protecttest.FreePort(t)
	argv := protecttest.GoServer(address)
	pidfile := protecttest.StartFile(t, 0, argv...)
	protecttest.AwaitListening(t, address)
	text, err := os.ReadFile(pidfile)
	if err != nil {
		t.Fatal(err)
	}
	o := options(t, protect.Auto, protecttest.Restart(pidfile, 0, 100*time.Millisecond, argv...), address)
	o.Netns = "/proc/" + strings.TrimSpace(string(text)) + "/ns/net"
	second := o
	second.Command = []string{"true"}
	started, ended := make(chan struct{}), make(chan error, 1)
	o.Observe = func(step string) {
		if step == "start" {
			close(started)
		}
	}
	go func() {
		_, err := protect.Run(context.WithoutCancel(t.Context()), o)
		ended <- err
	}()
	<-started
	if _, err := protect.Run(t.Context(), second); err != nil {
		t.Errorf("the second protect: %v", err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A keeper is killed some time after the limit of a hold only if it has not released it.
func TestKeeperStaysAfterTheRelease(t *testing.T) {
	labtest.NeedLong(t, "it waits for the time at which a keeper that hangs is killed")
	needsRoot(t)
	address := protecttest.FreePort(t)
	protecttest.Start(t, 0, protecttest.GoServer(address)...)
	protecttest.AwaitListening(t, address)
	k := startKeeper(t)
	spec := protect.Spec{Addresses: protecttest.Addresses(t, address), Backend: protect.Auto, Limit: 100 * time.Millisecond}
	if _, err := k.Hold(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	<-k.Released()
	time.Sleep(20 * time.Second)
	if _, err := k.Hold(t.Context(), spec); err != nil {
		t.Errorf("the next hold of the same keeper: %v", err)
	}
}

// Of two protects of one port, the second waits, or its error names the process that has
// the port.
func TestTaken(t *testing.T) {
	needsRoot(t)
	address := protecttest.FreePort(t)
	protecttest.Start(t, 0, protecttest.GoServer(address)...)
	protecttest.AwaitListening(t, address)
	o := options(t, protect.Auto, []string{"sleep", "1"}, address)
	started := make(chan struct{})
	o.Observe = func(step string) {
		if step == "start" {
			close(started)
		}
	}
	firstDone := make(chan error, 1)
	go func() {
		_, err := protect.Run(context.WithoutCancel(t.Context()), o)
		firstDone <- err
	}()
	<-started
	second := o
	second.Observe, second.Wait = nil, time.Millisecond
	if _, err := protect.Run(t.Context(), second); !errors.Is(err, protect.ErrTaken) || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("the second protect: %v", err)
	}
	second.Wait, second.Command = protecttest.Patience, []string{"true"}
	if _, err := protect.Run(t.Context(), second); err != nil {
		t.Errorf("the second protect, which waits: %v", err)
	}
	if err := <-firstDone; err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(o.LockDir); err != nil || len(left) > 0 {
		t.Errorf("locks are left: %v, %v", left, err)
	}
}
