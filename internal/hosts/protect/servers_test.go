package protect_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/hosts/protect/protecttest"
	"holdfast/test/poll"
)

// unprivileged is a user for servers that refuse to run as root.
const unprivileged = 65534

// ownDir makes a directory of that user.
func ownDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "holdfast-server-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chown(dir, unprivileged, unprivileged); err != nil {
		t.Fatal(err)
	}
	return dir
}

func hostPort(t *testing.T, address string) (host, port string) {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return host, port
}

// asUnprivileged begins a command that runs as that user.
func asUnprivileged() []string {
	return []string{"setpriv", fmt.Sprintf("--reuid=%d", unprivileged), fmt.Sprintf("--regid=%d", unprivileged), "--clear-groups"}
}

func isRun(t *testing.T, argv ...string) {
	t.Helper()
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", argv, err, out)
	}
}

// postgresServer makes a cluster, and returns a command that starts its server. Each start
// recovers from an archive that has nothing and takes a while to say so: the server listens,
// and refuses clients meanwhile.
func postgresServer(t *testing.T, address string) []string {
	t.Helper()
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if err != nil || len(found) == 0 {
		t.Fatal("these tests need PostgreSQL: apt-get install postgresql")
	}
	bin, dir := filepath.Dir(found[len(found)-1]), ownDir(t)
	isRun(t, append(asUnprivileged(), bin+"/initdb", "-D", dir+"/data", "-U", "postgres", "-A", "trust", "--no-sync", "--no-locale", "-E", "UTF8")...)
	host, port := hostPort(t, address)
	t.Cleanup(func() {
		if log, err := os.ReadFile(dir + "/data/log"); t.Failed() && err == nil {
			text := strings.ReplaceAll(string(log), "FATAL:  the database system is starting up\n", "")
			t.Logf("%s", text[:min(len(text), 5000)])
		}
	})
	conf := fmt.Sprintf(`listen_addresses = '%s'
port = %s
unix_socket_directories = ''
fsync = off
shared_buffers = 16MB
restore_command = 'sleep 0.2; exit 1'
`, host, port)
	if err := os.WriteFile(dir+"/data/postgresql.auto.conf", []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	return []string{"sh", "-c", `touch "$1/recovery.signal" && exec "$0" -D "$1" >>"$1/log" 2>&1`, bin + "/postgres", dir + "/data"}
}

// stopPostgres returns a command that stops the server of postgresServer, and then runs
// another one. A server that is killed in such a recovery does not always start again.
func stopPostgres(t *testing.T, argv, then []string) []string {
	t.Helper()
	exe, err := os.Executable() // which the shell's /proc/self/exe is not
	if err != nil {
		t.Fatal(err)
	}
	stop := slices.Concat(asUnprivileged(), []string{filepath.Join(filepath.Dir(argv[3]), "pg_ctl"), "-D", argv[4], "stop", "-s", "-m", "fast"})
	return append([]string{"sh", "-c", strings.Join(stop, " ") + ` && exec "$0" "$@"`, exe}, then[1:]...)
}

// askPostgres opens a connection, as pgbench -C does for each transaction, and closes it.
func askPostgres(address string) error {
	return over(address, func(c net.Conn) error {
		if _, err := io.WriteString(c, "\x00\x00\x00\x29\x00\x03\x00\x00user\x00postgres\x00database\x00postgres\x00\x00"); err != nil {
			return err
		}
		r := bufio.NewReader(c)
		for {
			var head [5]byte
			if _, err := io.ReadFull(r, head[:]); err != nil {
				return err
			}
			body := make([]byte, int(head[3])<<8+int(head[4])-4)
			if _, err := io.ReadFull(r, body); err != nil {
				return err
			}
			switch head[0] {
			case 'E':
				return fmt.Errorf("%q", body)
			case 'Z':
				_, err := io.WriteString(c, "X\x00\x00\x00\x04")
				return err
			}
		}
	})
}

// redisServer returns a command that starts a Redis, which loads a data set for a second.
// That is a thousand keys, and a pause of a millisecond before each.
func redisServer(t *testing.T, address string) []string {
	t.Helper()
	dir := ownDir(t)
	host, port := hostPort(t, address)
	argv := []string{"redis-server", "--bind", host, "--port", port, "--dir", dir, "--save", "", "--logfile", dir + "/log",
		"--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024", "--enable-debug-command", "yes"}
	s := protecttest.Start(t, unprivileged, argv...)
	for _, line := range []string{"DEBUG POPULATE 1000 key 64", "SAVE"} {
		poll.Until(t, line, func() bool { return redis(address, line, "+OK") == nil })
	}
	s.Kill()
	return argv
}

func redis(address, line, want string) error {
	return over(address, func(c net.Conn) error {
		if _, err := io.WriteString(c, line+"\r\n"); err != nil {
			return err
		}
		got, err := bufio.NewReader(c).ReadString('\n')
		if err == nil && !strings.HasPrefix(got, want) {
			err = errors.New(got)
		}
		return err
	})
}

func askRedis(address string) error { return redis(address, "GET key:1", "$") }

// mariaServer makes a data directory, and returns a command that starts its server.
func mariaServer(t *testing.T, address string) []string {
	t.Helper()
	dir := ownDir(t)
	host, port := hostPort(t, address)
	argv := []string{"mariadbd", "--no-defaults", "--datadir=" + dir, "--bind-address=" + host, "--port=" + port, "--socket=" + dir + "/s",
		"--skip-grant-tables", "--skip-networking=0", "--innodb-buffer-pool-size=16M", "--log-error=" + dir + "/log", "--skip-name-resolve"}
	return argv
}

func askMaria(address string) error {
	return over(address, func(c net.Conn) error {
		var head [5]byte
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return err
		}
		if head[4] != 10 {
			return fmt.Errorf("no handshake: %x", head)
		}
		return nil
	})
}

// stallServer returns a command that starts a server which accepts at once and is ready only
// later, like a Java server: until then it answers /health with 503 and ends all other
// connections without an answer.
func stallServer(address string, mptcp bool) []string {
	kind := "plain"
	if mptcp {
		kind = "mptcp"
	}
	return []string{"/proc/self/exe", roleStall, address, kind}
}

// stallFor is how long such a server is not ready.
const stallFor = 500 * time.Millisecond

func askHTTP(address string) error {
	_, err := protecttest.Ask(address, "/")
	return err
}

// over calls f with a connection.
func over(address string, f func(net.Conn) error) error {
	c, err := net.DialTimeout("tcp", address, protecttest.Patience)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(protecttest.Patience)); err != nil {
		return err
	}
	return f(c)
}

// clients calls ask for a new client after each interval, in an open loop.
type clients struct {
	stop    chan struct{}
	all     sync.WaitGroup
	mu      sync.Mutex
	served  int
	failed  []error
	longest time.Duration
}

func startClients(t *testing.T, every time.Duration, ask func() error) *clients {
	c := &clients{stop: make(chan struct{})}
	c.all.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-c.stop:
				return
			case <-tick.C:
				c.all.Go(func() { c.one(ask) })
			}
		}
	})
	t.Cleanup(func() { c.end() })
	return c
}

func (c *clients) one(ask func() error) {
	begin := time.Now()
	err := ask()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.longest = max(c.longest, time.Since(begin))
	if err != nil {
		c.failed = append(c.failed, err)
	} else {
		c.served++
	}
}

// end waits for the last clients.
func (c *clients) end() (served int, failed []error, longest time.Duration) {
	select {
	case <-c.stop:
	default:
		close(c.stop)
	}
	c.all.Wait()
	return c.served, c.failed, c.longest
}
