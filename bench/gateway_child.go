package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
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
// of clients prints a line when they are connected. It
// returns at EOF of in, which is also the parent's death.
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

// nginxConfig configures nginx for WebSockets as its users do, with settings that
// help it here: one worker per CPU, connections spread over the workers, no log, and a
// buffer that holds a whole message (its default is one page).
var nginxConfig = template.Must(template.New("nginx").Parse(`
daemon off;
worker_processes auto;
pid {{.Dir}}/pid;
error_log {{.Dir}}/error.log crit;
events { worker_connections 20000; }
http {
	access_log off;
	client_body_temp_path {{.Dir}}/body;
	proxy_temp_path {{.Dir}}/proxy;
	fastcgi_temp_path {{.Dir}}/fastcgi;
	uwsgi_temp_path {{.Dir}}/uwsgi;
	scgi_temp_path {{.Dir}}/scgi;
	server {
		listen {{.Listen}} reuseport;
		tcp_nodelay on;
		location /s/bench/ {
			proxy_pass http://{{.Upstream}}/;
			proxy_http_version 1.1;
			proxy_set_header Host $host;
			proxy_set_header Upgrade $http_upgrade;
			proxy_set_header Connection upgrade;
			proxy_buffering off;
			proxy_buffer_size 64k;
			proxy_buffers 4 64k;
			proxy_read_timeout 1h;
		}
	}
}
`))

// startNginx starts nginx in front of upstream.
func startNginx(ctx context.Context, upstream string) (address string, stop func(), err error) {
	bin, err := exec.LookPath("nginx")
	if err != nil {
		bin, err = exec.LookPath("/usr/sbin/nginx")
	}
	if err != nil {
		return "", nil, fmt.Errorf("nginx is not installed: %w", err)
	}
	dir, err := os.MkdirTemp("", "holdfast-bench-nginx-")
	if err != nil {
		return "", nil, err
	}
	clean := func() { os.RemoveAll(dir) }
	if address, err = lab.FreePort(); err != nil {
		clean()
		return "", nil, err
	}
	var conf strings.Builder
	if err := nginxConfig.Execute(&conf, map[string]string{"Dir": dir, "Listen": address, "Upstream": upstream}); err != nil {
		clean()
		return "", nil, err
	}
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(conf.String()), 0o600); err != nil {
		clean()
		return "", nil, err
	}
	cmd := exec.Command(bin, "-p", dir, "-c", file, "-e", filepath.Join(dir, "error.log"))
	var said strings.Builder
	cmd.Stderr = &said
	ended, err := deathsig.Start(cmd, syscall.SIGTERM)
	if err != nil {
		clean()
		return "", nil, fmt.Errorf("start nginx: %w", err)
	}
	exited := make(chan struct{})
	go func() { <-ended; close(exited) }()
	stop = func() {
		cmd.Process.Signal(syscall.SIGTERM)
		<-exited
		clean()
	}
	if err := awaitListening(ctx, address, exited); err != nil {
		stop()
		return "", nil, fmt.Errorf("nginx: %w: %s", err, said.String())
	}
	return address, stop, nil
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
