package quic_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/protect"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// http3s is HTTP/3 of a server that tells its worker's pid.
func http3s(path string) protocol {
	return protocol{http3.NextProtoH3, func(c *quic.Conn) asker {
		cc := (&http3.Transport{}).NewClientConn(c)
		return func(ctx context.Context) (int, error) { return get(ctx, cc, path) }
	}}
}

func get(ctx context.Context, over http.RoundTripper, path string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://localhost"+path, nil)
	if err != nil {
		return 0, err
	}
	resp, err := over.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return 0, err
	}
	if resp.StatusCode != http.StatusOK {
		return 0, errors.New(resp.Status)
	}
	return strconv.Atoi(resp.Header.Get("X-Pid"))
}

// webLoad is that of HTTP/3.
type webLoad struct {
	*load
	moves                       bool // addresses of clients change
	dialed, crossed, whole, cut atomic.Int64
}

// pooled is a client with a pool: it connects again when its connection has ended between
// two requests, or has been closed regularly as it sent one. Its address changes between some
// of them.
func (l *webLoad) pooled() error {
	var now *client
	end := func() {
		if now != nil {
			now.end()
		}
	}
	defer func() { end() }()
	pool := &http3.Transport{Dial: func(ctx context.Context, _ string, _ *tls.Config, _ *quic.Config) (*quic.Conn, error) {
		end()
		c, err := dial(ctx, l.address, protocol{http3.NextProtoH3, func(*quic.Conn) asker { return nil }})
		if now = c; err != nil {
			return nil, fmt.Errorf("handshake: %w", err)
		}
		l.dialed.Add(1)
		return c.Conn, nil
	}}
	defer pool.Close()
	for i := 0; ; i++ {
		select {
		case <-l.stop:
			return nil
		case <-time.After(10 * time.Millisecond): // a client's pause
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		before := now
		_, err := get(ctx, pool, "/")
		if e := (*http3.Error)(nil); errors.As(err, &e) && e.ErrorCode == http3.ErrCodeNoError && e.Remote {
			l.crossed.Add(1)
			_, err = get(ctx, pool, "/")
		}
		cancel()
		if err != nil {
			return fmt.Errorf("a request: %w", err)
		}
		l.done.Add(1)
		switch {
		case !l.moves:
		case i%20 == 10:
			if err := now.socket.rebind(); err != nil {
				return err
			}
		case i%20 == 11 && now == before:
			l.migrated.Add(1)
		}
	}
}

// slow makes a request whose answer takes longer than a reload.
func (l *webLoad) slow() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := dial(ctx, l.address, http3s("/slow"))
	if err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	defer c.end()
	if _, err := c.ask(ctx); err != nil {
		l.cut.Add(1)
	} else {
		l.whole.Add(1)
	}
	return nil
}

// nginx is one with HTTP/3.
type nginx struct {
	t            *testing.T
	program, dir string
	address      net.Addr
	main, listen string // in the configuration
	number       int    // of the present instance
}

func startNginx(t *testing.T, main, listen string) *nginx {
	out, err := exec.Command("../../packaging/dev/nginx.sh").Output()
	if err != nil {
		t.Fatal(err)
	}
	free, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer free.Close()
	n := &nginx{t, strings.TrimSpace(string(out)), t.TempDir(), free.LocalAddr(), main, listen, 0}
	cert, err := certificate()
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"root", "logs"} {
		if err := os.Mkdir(filepath.Join(n.dir, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, b := range map[string][]byte{
		"cert.pem":        pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}),
		"key.pem":         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		"root/index.html": []byte("hello"),
		"root/slow":       make([]byte, 150<<10),
	} {
		if err := os.WriteFile(filepath.Join(n.dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	free.Close()
	args := n.next()
	if b, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("nginx: %v: %s", err, b)
	}
	t.Cleanup(func() {
		for i := range n.number {
			if pid := n.pid(i + 1); pid != 0 {
				_ = unix.Kill(pid, unix.SIGTERM)
				poll.Until(t, "nginx ends", func() bool { return unix.Kill(pid, 0) != nil })
			}
		}
	})
	return n
}

// next returns the command that starts another instance, which becomes the present one.
func (n *nginx) next() []string {
	n.number++
	conf := fmt.Sprintf(`user root; pid %[1]s/pid-%[2]d; %[3]s
events { worker_connections 512; }
http {
  access_log off; quic_active_connection_id_limit 8; ssl_certificate %[1]s/cert.pem; ssl_certificate_key %[1]s/key.pem;
  server {
    listen %[4]s quic %[5]s; root %[1]s/root; add_header X-Pid $pid;
    location /slow { limit_rate 50k; }
  }
}
`, n.dir, n.number, n.main, n.address, n.listen)
	if err := os.WriteFile(n.conf(), []byte(conf), 0o600); err != nil {
		n.t.Fatal(err)
	}
	return n.command()
}

func (n *nginx) conf() string { return filepath.Join(n.dir, fmt.Sprintf("conf-%d", n.number)) }

func (n *nginx) command(args ...string) []string {
	return append([]string{n.program, "-p", n.dir, "-e", filepath.Join(n.dir, "log"), "-c", n.conf()}, args...)
}

// pid returns that of an instance; 0: it has ended.
func (n *nginx) pid(number int) int {
	b, err := os.ReadFile(filepath.Join(n.dir, fmt.Sprintf("pid-%d", number)))
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return pid
}

// Ways to give nginx a new configuration.
const (
	restarts      = "stop, start"
	overlaps      = "a new instance beside the old one"
	reloading     = "nginx -s reload"
	reloadsBeside = "nginx -s reload, with overlap"
)

func (n *nginx) change(way string) []string {
	old := n.pid(n.number)
	switch way {
	case restarts: // SIGQUIT as of Debian's unit
		return []string{"sh", "-c", fmt.Sprintf("kill -QUIT %d; timeout 5 tail -f /dev/null --pid %[1]d || kill -TERM %[1]d; tail -f /dev/null --pid %[1]d; exec %s",
			old, strings.Join(n.next(), " "))}
	case reloadsBeside: // the signal is sent before the new sockets are there; protect waits for them while the command runs
		return []string{"sh", "-c", strings.Join(n.command("-s", "reload"), " ") + " && sleep 2"}
	case overlaps:
		return []string{"sh", "-c", fmt.Sprintf("%s && kill -QUIT %d", strings.Join(n.next(), " "), old)}
	}
	return n.command("-s", "reload")
}

// HTTP/3 of nginx over all ways to give it a new configuration: no handshake fails, and no
// request but those that cross the regular end of their connection. Answers that take longer
// arrive whole. In a reload without quic_bpf, old and new workers read the same sockets; its
// figures are only written.
func TestNginx(t *testing.T) {
	labtest.NeedLong(t, "an nginx is built, and restarted for minutes")
	for _, c := range []struct {
		way, main, listen string
		moves             bool // clients' addresses change, for which nginx with several workers needs quic_bpf
		shared            bool // sockets
	}{
		{way: restarts, main: "worker_processes 1;", moves: true},
		{way: restarts, main: "worker_processes 2;", listen: "reuseport"},
		{way: restarts, main: "worker_processes 2; quic_bpf on;", listen: "reuseport", moves: true},
		{way: overlaps, main: "worker_processes 1;", listen: "reuseport", moves: true},
		{way: overlaps, main: "worker_processes 1; quic_bpf on;", listen: "reuseport", moves: true},
		{way: reloadsBeside, main: "worker_processes 1; quic_bpf on;", listen: "reuseport", moves: true},
		{way: reloading, main: "worker_processes 2; quic_bpf on;", listen: "reuseport", moves: true},
		{way: reloading, main: "worker_processes 1;", moves: true, shared: true},
		{way: reloading, main: "worker_processes 2;", listen: "reuseport", shared: true},
	} {
		t.Run(fmt.Sprint(c.way, ", ", c.main, c.listen), func(t *testing.T) {
			n := startNginx(t, c.main, c.listen)
			l := &webLoad{load: newLoad(n.address, http3s("/")), moves: c.moves}
			for range 2 {
				l.run(l.short)
				l.run(l.pooled)
				l.run(l.slow)
			}
			held, lost, count, dir := 0, 0, 0, t.TempDir()
			for range *reloads {
				command := n.change(c.way)
				if *without {
					if b, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
						t.Fatalf("%v: %s", err, b)
					}
				} else {
					d := protectDatagrams(t, dir, n.address, protect.AutoFlows, c.way == overlaps || c.way == reloadsBeside, command)
					if d == nil {
						break
					}
					held, lost = held+d.Held, lost+d.Lost
				}
				count++
				l.reload()
				time.Sleep(*pause)
			}
			l.end()
			t.Logf("%d changes, %d requests, %d failed; %d connections of pools, %d ended regularly as a request was sent; %d changes of addresses; slow answers: %d whole, %d cut; %d datagrams held, %d lost",
				count, l.done.Load(), len(l.failed), l.dialed.Load(), l.crossed.Load(), l.migrated.Load(), l.whole.Load(), l.cut.Load(), held, lost)
			if c.shared {
				return
			}
			l.report(t)
			if l.cut.Load() > 0 || c.moves && l.migrated.Load() == 0 {
				t.Error("an answer was cut, or no address changed")
			}
		})
	}
}
