package reload

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/linux/deathsig"
	"holdfast/internal/platform/linux/proc"
)

// The write-up's ports and answer.
var (
	frontAddress = netip.MustParseAddrPort("127.0.0.1:16000")
	backAddress  = netip.MustParseAddrPort("127.0.0.1:8001")
)

const pong = "pong\n"

// startLimit is the time limit for a server to listen, and to exit.
const startLimit = 20 * time.Second

// stack is HAProxy before nginx, in a directory with their configurations and the
// commands that reload and restart HAProxy.
type stack struct {
	dir     string
	haproxy string // the program
	nginx   *exec.Cmd
	exited  chan struct{} // closed when nginx has ended
}

func (s *stack) file(name string) string { return filepath.Join(s.dir, name) }

const nginxConfig = `daemon off;
worker_processes 1;
pid nginx.pid;
error_log error.log crit;
events { worker_connections 10000; }
http {
	access_log off;
	client_body_temp_path body;
	proxy_temp_path proxy;
	fastcgi_temp_path fastcgi;
	uwsgi_temp_path uwsgi;
	scgi_temp_path scgi;
	server {
		listen %s;
		keepalive_requests 1000000;
		location / { return 200 "pong\n"; }
	}
}
`

// haproxyConfig is the write-up's: one frontend, one backend. The socket is what
// -x asks for listeners; the rest does not use it.
const haproxyConfig = `global
	daemon
	maxconn 9000
	hard-stop-after 10s
	stats socket %s mode 600 level admin expose-fd listeners
defaults
	mode http
	timeout connect 5s
	timeout client 30s
	timeout server 30s
frontend front
	bind %s
	default_backend back
backend back
	server nginx %s
`

// The commands that change HAProxy, as an operator has them in files. The arguments of
// reload.sh are further options.
const (
	reloadScript = `#!/bin/sh
exec %[1]s -f %[2]s/haproxy.cfg -p %[2]s/haproxy.pid "$@" -sf $(cat %[2]s/haproxy.pid)
`
	restartScript = `#!/bin/sh
kill -9 $(cat %[2]s/haproxy.pid)
exec %[1]s -f %[2]s/haproxy.cfg -p %[2]s/haproxy.pid
`
)

// newStack writes the files and starts both servers. haproxy is the program, "" Debian's.
func newStack(ctx context.Context, haproxy string) (_ *stack, err error) {
	s := &stack{haproxy: haproxy}
	if haproxy == "" {
		if s.haproxy, err = program("haproxy"); err != nil {
			return nil, err
		}
	}
	if s.dir, err = os.MkdirTemp("", "holdfast-reload-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	for name, text := range map[string]string{
		"nginx.conf":  fmt.Sprintf(nginxConfig, backAddress),
		"haproxy.cfg": fmt.Sprintf(haproxyConfig, s.file("haproxy.sock"), frontAddress, backAddress),
		"reload.sh":   fmt.Sprintf(reloadScript, s.haproxy, s.dir),
		"restart.sh":  fmt.Sprintf(restartScript, s.haproxy, s.dir),
	} {
		if err := os.WriteFile(s.file(name), []byte(text), 0o700); err != nil {
			return nil, err
		}
	}
	if err := s.startNginx(ctx); err != nil {
		return nil, err
	}
	return s, s.startHAProxy(ctx)
}

// program finds one of Debian's servers, which a user's PATH may not have.
func program(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/" + name)
	}
	if err != nil {
		return "", holdfast.WithHint(fmt.Errorf("%s is not installed: %w", name, err), "make bench-tools installs it")
	}
	return path, nil
}

func (s *stack) startNginx(ctx context.Context) error {
	path, err := program("nginx")
	if err != nil {
		return err
	}
	s.nginx = exec.Command(path, "-p", s.dir, "-c", s.file("nginx.conf"), "-e", s.file("error.log"))
	var said strings.Builder
	s.nginx.Stderr = &said
	ended, err := deathsig.Start(s.nginx, unix.SIGTERM)
	if err != nil {
		s.nginx = nil
		return fmt.Errorf("start nginx: %w", err)
	}
	s.exited = make(chan struct{})
	go func() {
		<-ended // the output is in said
		close(s.exited)
	}()
	if err := listens(ctx, backAddress, s.exited); err != nil {
		return fmt.Errorf("start nginx: %w: %s", err, said.String())
	}
	return nil
}

// startHAProxy starts the first one. It goes to the background once it listens.
func (s *stack) startHAProxy(ctx context.Context, options ...string) error {
	if err := s.command(ctx, append([]string{s.haproxy, "-f", s.file("haproxy.cfg"), "-p", s.file("haproxy.pid")}, options...)...); err != nil {
		return fmt.Errorf("start HAProxy: %w", err)
	}
	return listens(ctx, frontAddress, nil)
}

// command runs a program to its end. The error contains its output.
func (s *stack) command(ctx context.Context, argv ...string) error {
	_, err := s.output(ctx, argv...)
	return err
}

// output is command, but returns the standard output, also after an error.
func (s *stack) output(ctx context.Context, argv ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	// The outputs are files, because the background process of HAProxy keeps them open.
	// The end of a pipe would never come.
	out, err := os.Create(s.file("out"))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	complaint, err := os.Create(s.file("err"))
	if err != nil {
		return nil, err
	}
	defer complaint.Close()
	cmd.Stdout, cmd.Stderr = out, complaint
	ran := cmd.Run()
	b, err := os.ReadFile(out.Name())
	if ran != nil {
		said, _ := os.ReadFile(complaint.Name()) // the error is told without it
		ran = fmt.Errorf("%s: %w: %.500s", filepath.Base(argv[0]), ran, said)
	}
	return b, errors.Join(ran, err)
}

// version is HAProxy's, as in "HAProxy version 2.6.12-1+deb12u2 2025/04/16".
func (s *stack) version(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, s.haproxy, "-v").Output()
	if err != nil {
		return "", fmt.Errorf("ask HAProxy for its version: %w", err)
	}
	_, rest, _ := strings.Cut(string(out), "version ")
	version, _, _ := strings.Cut(rest, " ")
	return version, nil
}

// listens waits until address accepts connections.
func listens(ctx context.Context, address netip.AddrPort, exited <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		c, err := net.DialTimeout("tcp", address.String(), time.Second)
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

// proxies are the HAProxy processes of this stack.
func (s *stack) proxies() ([]int, error) {
	pids, err := proc.Host.Pids()
	if err != nil {
		return nil, err
	}
	var ours []int
	for _, pid := range pids {
		b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
		if err == nil && strings.HasPrefix(string(b), s.haproxy+"\x00") && strings.Contains(string(b), "\x00"+s.file("haproxy.cfg")+"\x00") {
			ours = append(ours, pid)
		}
	}
	return ours, nil
}

// killProxies ends every HAProxy of the stack and returns when they are gone.
func (s *stack) killProxies() error {
	for deadline := time.Now().Add(startLimit); ; time.Sleep(5 * time.Millisecond) {
		pids, err := s.proxies()
		if err != nil || len(pids) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("HAProxy does not end: processes %v", pids)
		}
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL) // an error means that it has exited already
		}
	}
}

// stop ends both servers and removes the directory.
func (s *stack) stop() error {
	err := s.killProxies()
	if s.nginx != nil {
		_ = s.nginx.Process.Signal(unix.SIGTERM) // it may have ended
		<-s.exited
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}
