package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"text/template"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/platform/linux/deathsig"
	"holdfast/internal/sessions/gateway"
	"holdfast/test/lab"
)

// The roles of child processes of the gateway bench.
const (
	roleEcho    = "echo"
	roleGateway = "gateway"
	roleSecure  = "gateway-tls"
	rolePages   = "pages"
	roleClients = "clients"
)

// startTimeout is the limit until a child listens.
const startTimeout = 10 * time.Second

// GatewayChild is the main function of a process started by GatewayOptions.Child. It
// runs the role in args on its own loopback port and prints the address to out. The role
// of clients prints a line when they are connected. GatewayChild returns at EOF of in, which
// also follows the parent's death.
func GatewayChild(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		io.Copy(io.Discard, in)
		cancel()
	}()
	if len(args) == 4 && args[0] == roleClients {
		return holdClients(ctx, args[1:], out)
	}
	if len(args) > 0 && (args[0] == roleGateway || args[0] == roleSecure) {
		gateway.SpareProcessor() // as the agent does
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("bench child: %w", err)
	}
	fmt.Fprintln(out, ln.Addr())
	switch {
	case len(args) == 1 && args[0] == roleEcho:
		return serveEcho(ctx, ln)
	case len(args) == 1 && args[0] == rolePages:
		return servePages(ctx, ln)
	case len(args) == 2 && args[0] == roleGateway:
		return serveGateway(ctx, ln, gateway.DefaultConfig(), args[1])
	case len(args) == 4 && args[0] == roleSecure:
		c := gateway.DefaultConfig()
		c.CertFile, c.KeyFile = args[2], args[3]
		return serveGateway(ctx, ln, c, args[1])
	}
	ln.Close()
	return fmt.Errorf("bench child: unknown role %q", args)
}

// serveGateway runs a gateway in front of the server at upstream.
func serveGateway(ctx context.Context, ln net.Listener, c gateway.Config, upstream string) error {
	g, err := gateway.New(c, oneSession{upstream}, nil, gateway.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	return g.Run(ctx, ln)
}

// oneSession routes every key to one address.
type oneSession struct{ address string }

func (s oneSession) Acquire(_ context.Context, key holdfast.SessionKey, _ func() error) (holdfast.Route, func(), error) {
	return holdfast.Route{Key: key, Address: s.address, Epoch: 1}, func() {}, nil
}

// Ready implements gateway.Sessions. The session is always ready.
func (s oneSession) Ready(key holdfast.SessionKey) (holdfast.Route, func(), bool) {
	return holdfast.Route{Key: key, Address: s.address, Epoch: 1}, func() {}, true
}

func (oneSession) Refused(holdfast.SessionKey, holdfast.Route) {}

// AwaitResume implements gateway.Sessions. The session is never suspended.
func (oneSession) AwaitResume(ctx context.Context, _ holdfast.SessionKey, _ holdfast.Epoch) (holdfast.Route, error) {
	return holdfast.Route{}, ctx.Err()
}

// startChild starts a role and returns the address that it listens on.
func startChild(ctx context.Context, command []string, role ...string) (address string, stop func(), err error) {
	address, _, stop, err = startProcess(ctx, command, role...)
	return address, stop, err
}

// startProcess is startChild, and returns the process's id.
func startProcess(ctx context.Context, command []string, role ...string) (address string, pid int, stop func(), err error) {
	args := append(append([]string{}, command[1:]...), role...)
	cmd := exec.CommandContext(ctx, command[0], args...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return "", 0, nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return "", 0, nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", 0, nil, fmt.Errorf("start %s: %w", role[0], err)
	}
	stop = func() {
		stdin.Close()
		cmd.Wait()
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		stop()
		return "", 0, nil, fmt.Errorf("%s did not print its address: %w", role[0], err)
	}
	return strings.TrimSpace(line), cmd.Process.Pid, stop, nil
}

// nginxBase begins each configuration: one worker per CPU, connections spread over the
// workers, no log.
const nginxBase = `
daemon off;
worker_processes auto;
pid {{.Dir}}/pid;
error_log {{.Dir}}/error.log crit;
events { worker_connections 20000; }
http {
	access_log off;
	keepalive_requests 1000000000;
	client_body_temp_path {{.Dir}}/body;
	proxy_temp_path {{.Dir}}/proxy;
	fastcgi_temp_path {{.Dir}}/fastcgi;
	uwsgi_temp_path {{.Dir}}/uwsgi;
	scgi_temp_path {{.Dir}}/scgi;
`

// pagesConfig is that of a server with one page of 1 KiB.
var pagesConfig = nginxBase + `
	server {
		listen {{.Listen}} reuseport;
		location / { return 200 "` + strings.Repeat("0123456789abcdef", 64) + `"; }
	}
}
`

// proxyConfig configures nginx as a proxy for WebSockets and pages as its users do, with
// settings that help it here: kept-alive connections to the server for all clients, and a
// buffer that holds a whole message (its default is one page).
const proxyConfig = nginxBase + `
	map $http_upgrade $upgrade { default upgrade; "" ""; }
	upstream server { server {{.Upstream}}; keepalive 1000; keepalive_requests 1000000000; }
	server {
		listen {{.Listen}} reuseport;
		listen {{.Secure}} ssl http2 reuseport;
		ssl_certificate {{.Cert}};
		ssl_certificate_key {{.Key}};
		ssl_protocols TLSv1.2 TLSv1.3;
		tcp_nodelay on;
		location /s/bench/ {
			proxy_pass http://server/;
			proxy_http_version 1.1;
			proxy_set_header Host $host;
			proxy_set_header Upgrade $http_upgrade;
			proxy_set_header Connection $upgrade;
			proxy_buffering off;
			proxy_buffer_size 64k;
			proxy_buffers 4 64k;
			proxy_read_timeout 1h;
		}
	}
}
`

// startNginx starts nginx with a configuration, and returns the addresses of its ports
// Listen and Secure.
func startNginx(ctx context.Context, config string, values map[string]string) (addresses [2]string, stop func(), err error) {
	text, err := template.New("nginx").Parse(config)
	if err != nil {
		return addresses, nil, err
	}
	bin, err := exec.LookPath("nginx")
	if err != nil {
		bin, err = exec.LookPath("/usr/sbin/nginx")
	}
	if err != nil {
		return addresses, nil, fmt.Errorf("nginx is not installed: %w", err)
	}
	dir, err := os.MkdirTemp("", "holdfast-bench-nginx-")
	if err != nil {
		return addresses, nil, err
	}
	clean := func() { os.RemoveAll(dir) }
	for i := range addresses {
		if addresses[i], err = lab.FreePort(); err != nil {
			clean()
			return addresses, nil, err
		}
	}
	data := map[string]string{"Dir": dir, "Listen": addresses[0], "Secure": addresses[1]}
	maps.Copy(data, values)
	var conf strings.Builder
	if err := text.Execute(&conf, data); err != nil {
		clean()
		return addresses, nil, err
	}
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(conf.String()), 0o600); err != nil {
		clean()
		return addresses, nil, err
	}
	cmd := exec.Command(bin, "-p", dir, "-c", file, "-e", filepath.Join(dir, "error.log"))
	var said strings.Builder
	cmd.Stderr = &said
	ended, err := deathsig.Start(cmd, syscall.SIGTERM)
	if err != nil {
		clean()
		return addresses, nil, fmt.Errorf("start nginx: %w", err)
	}
	exited := make(chan struct{})
	go func() { <-ended; close(exited) }()
	stop = func() {
		cmd.Process.Signal(syscall.SIGTERM)
		<-exited
		clean()
	}
	if err := awaitListening(ctx, addresses[0], exited); err != nil {
		stop()
		return addresses, nil, fmt.Errorf("nginx: %w: %s", err, said.String())
	}
	return addresses, stop, nil
}

// awaitListening returns when address accepts connections.
func awaitListening(ctx context.Context, address string, exited <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		c, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			return c.Close()
		}
		select {
		case <-exited:
			return errors.New("it exited during its start")
		case <-ctx.Done():
			return fmt.Errorf("it does not listen: %w", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
