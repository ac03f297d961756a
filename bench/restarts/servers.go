package restarts

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"holdfast/internal/hosts/protect/ready"
)

// server is a row of the table. Its script in servers/ prepares, starts, stops and loads it.
type server struct {
	name   string
	script string
	needs  []string // programs
	tool   string   // the load tool, with the option that makes a connection for each request
	reload string   // what reload does; "": the server has none
	ask    func(ctx context.Context, dial ready.Dial) error
}

const wrk = "wrk, Connection: close"

// servers are the rows in their order.
func servers() []server {
	return []server{
		{"PostgreSQL", "postgres", []string{"postgres", "pgbench"}, "pgbench -C", "pg_ctl reload", ready.Check{Kind: ready.Postgres}.Ask},
		{"MariaDB", "mariadb", []string{"mariadbd", "mariadb-admin", "sysbench"}, "sysbench, connect and query", "", ready.Check{Kind: ready.MySQL}.Ask},
		{"Redis", "redis", []string{"redis-server", "redis-benchmark"}, "redis-benchmark -k 0", "", ready.Check{Kind: ready.Redis}.Ask},
		{"RabbitMQ", "rabbitmq", []string{"rabbitmq-server", "amqp-publish"}, "amqp-publish", "", askAMQP},
		{"HAProxy", "haproxy", []string{"haproxy", "wrk"}, wrk, "haproxy -sf", askHTTP},
		{"nginx", "nginx", []string{"nginx", "wrk"}, wrk, "SIGHUP", askHTTP},
		{"Envoy", "envoy", []string{"envoy", "wrk"}, wrk, "hot restart", askHTTP},
		{"Node", "node", []string{"node", "wrk"}, wrk, "", askHTTP},
		{"gunicorn", "gunicorn", []string{"gunicorn", "wrk"}, wrk, "SIGHUP", askHTTP},
		{"uvicorn", "uvicorn", []string{"uvicorn", "wrk"}, wrk, "", askHTTP},
		{"Tomcat", "tomcat", []string{"catalina.sh", "java", "wrk"}, wrk, "", askHTTP},
	}
}

func names() (all []string) {
	for _, s := range servers() {
		all = append(all, s.name)
	}
	return all
}

// places are directories of programs that are not in each PATH.
func places() []string {
	dirs := []string{"/usr/sbin", "/usr/share/tomcat10/bin"}
	if found, err := filepath.Glob("/usr/lib/postgresql/*/bin"); err == nil {
		dirs = append(dirs, found...)
	}
	if cache, err := os.UserCacheDir(); err == nil {
		dirs = append(dirs, filepath.Join(cache, "holdfast-test", "envoy")) // of packaging/dev/envoy.sh
	}
	return dirs
}

// missing returns the program that is not installed, or "".
func (s server) missing() string {
	for _, p := range s.needs {
		found := func(dir string) bool { _, err := exec.LookPath(filepath.Join(dir, p)); return err == nil }
		if _, err := exec.LookPath(p); err != nil && !slices.ContainsFunc(places(), found) {
			return p
		}
	}
	return ""
}

//go:embed servers/*.sh
var scripts embed.FS

// text returns the script of a server.
func (s server) text() (string, error) {
	var all strings.Builder
	for _, name := range []string{"lib", s.script, "end"} {
		b, err := scripts.ReadFile("servers/" + name + ".sh")
		if err != nil {
			return "", err
		}
		all.Write(b)
	}
	return all.String(), nil
}

// askHTTP requests the page that each HTTP server of the bench has.
func askHTTP(ctx context.Context, dial ready.Dial) error {
	return ready.Check{Kind: ready.HTTP, URL: "http://" + address + "/"}.Ask(ctx, dial)
}

// askAMQP begins a connection of AMQP 0-9-1: the server answers the protocol header with a
// frame of kind 1, which has the method connection.start (section 4.2.2 of its specification).
func askAMQP(ctx context.Context, dial ready.Dial) error {
	c, err := dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if end, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(end); err != nil {
			return err
		}
	}
	if _, err := c.Write([]byte("AMQP\x00\x00\x09\x01")); err != nil {
		return err
	}
	frame := make([]byte, 512)
	n, err := c.Read(frame)
	switch {
	case err != nil:
		return err
	case frame[0] != 1:
		return fmt.Errorf("answers the protocol header with %q", frame[:n])
	}
	return nil
}

// dial connects to the server of the bench.
func dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", address)
}

// errNoServers reports that no server of the table could run.
var errNoServers = errors.New("none of the servers is installed")
