// Package apiserver runs a real Kubernetes API server on loopback, with its own etcd, for
// tests and benchmarks. It runs no other part of a cluster.
package apiserver

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// Limits of starting.
const (
	upLimit = 2 * time.Minute
	tries   = 3 // because another process may take the port before the server does
)

// Options are the options of a Server.
type Options struct {
	Binary string   // of the API server
	Dir    string   // for its files
	Etcd   string   // URL of an etcd; "": one in this process
	Args   []string // additional flags of the API server
	Users  []User   // in addition to the administrator
}

// User is an account that the API server authenticates by a token.
type User struct {
	Token, Name string
	Groups      []string
}

// Server is a running API server. Only one goroutine at a time may call its methods.
type Server struct {
	URL   string
	Token string // the administrator's

	opt   Options
	etcd  *embed.Etcd // nil: the caller runs etcd
	cmd   *exec.Cmd
	ended chan error
}

// Start starts a server and returns when it serves. The caller closes it.
func Start(ctx context.Context, o Options) (*Server, error) {
	s := &Server{Token: rand.Text(), opt: o}
	if err := s.prepare(); err != nil {
		return nil, err
	}
	if o.Etcd == "" {
		if err := s.startEtcd(); err != nil {
			return nil, err
		}
	}
	var err error
	for range tries {
		if err = s.start(ctx, 0); err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Server) prepare() error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	block := &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}
	tokens := s.Token + ",admin,1,system:masters\n"
	for i, u := range s.opt.Users {
		tokens += fmt.Sprintf("%s,%s,%d,%q\n", u.Token, u.Name, i+2, strings.Join(u.Groups, ","))
	}
	return errors.Join(
		os.WriteFile(s.File("accounts.pem"), pem.EncodeToMemory(block), 0o600),
		os.WriteFile(s.File("tokens.csv"), []byte(tokens), 0o600))
}

// File returns the path of one of its files.
func (s *Server) File(name string) string { return filepath.Join(s.opt.Dir, name) }

// CAFile returns the path of the certificate that verifies the server.
func (s *Server) CAFile() string { return s.File("certs/apiserver.crt") }

// Pid returns the pid of the server, 0 while it is stopped.
func (s *Server) Pid() int {
	if s.cmd == nil {
		return 0
	}
	return s.cmd.Process.Pid
}

func (s *Server) startEtcd() error {
	conf := embed.NewConfig()
	conf.Dir = s.File("etcd")
	conf.ListenPeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	conf.ListenClientUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	conf.AdvertiseClientUrls = conf.ListenClientUrls
	conf.UnsafeNoFsync = true // the data need not survive a crash of the machine
	conf.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e, err := embed.StartEtcd(conf)
	if err != nil {
		return fmt.Errorf("starting etcd: %w", err)
	}
	s.etcd = e
	s.opt.Etcd = "http://" + e.Clients[0].Addr().String()
	<-e.Server.ReadyNotify()
	return nil
}

// start starts the API server and waits until it serves. Port 0 is any.
func (s *Server) start(ctx context.Context, port int) error {
	if port == 0 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		port = l.Addr().(*net.TCPAddr).Port
		l.Close()
	}
	s.URL = fmt.Sprintf("https://127.0.0.1:%d", port)
	log, err := os.OpenFile(s.File("kube-apiserver.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	s.cmd = exec.Command(s.opt.Binary, append([]string{
		"--etcd-servers=" + s.opt.Etcd,
		fmt.Sprintf("--secure-port=%d", port), "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
		"--cert-dir=" + s.File("certs"), "--token-auth-file=" + s.File("tokens.csv"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + s.File("accounts.pem"), "--service-account-signing-key-file=" + s.File("accounts.pem"),
		"--service-cluster-ip-range=10.0.0.0/24", "--authorization-mode=Node,RBAC",
		// No controller runs here to create each namespace's service account.
		"--disable-admission-plugins=ServiceAccount",
		"--allow-privileged=true", "--profiling=false", "--endpoint-reconciler-type=none"}, s.opt.Args...)...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	s.ended = make(chan error, 1)
	go func() { s.ended <- s.cmd.Wait() }()
	if err := s.await(ctx); err != nil {
		return errors.Join(err, s.Stop())
	}
	return nil
}

// await waits until the server is ready.
func (s *Server) await(ctx context.Context) error {
	deadline := time.Now().Add(upLimit)
	for {
		err := s.ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case end := <-s.ended:
			s.ended <- end
			return fmt.Errorf("the API server ended: %w\n%s", end, s.log())
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the API server is not ready: %w\n%s", err, s.log())
		}
	}
}

// ready asks the server once whether it is ready.
func (s *Server) ready(ctx context.Context) error {
	ca, err := os.ReadFile(s.CAFile()) // the server creates it at its start
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	t := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/readyz", nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+s.Token)
	resp, err := (&http.Client{Transport: t, Timeout: 10 * time.Second}).Do(req)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

func (s *Server) log() string {
	b, _ := os.ReadFile(s.File("kube-apiserver.log")) // for a message only
	return string(b[max(0, len(b)-4000):])
}

// Stop kills the API server. Etcd continues.
func (s *Server) Stop() error {
	if s.cmd == nil || s.cmd.Process == nil {
		return nil
	}
	_ = s.cmd.Process.Kill() // an error: it has ended
	<-s.ended
	s.cmd = nil
	return nil
}

// Restart starts an API server that was stopped, at the same address.
func (s *Server) Restart(ctx context.Context) error {
	u, err := url.Parse(s.URL)
	if err != nil {
		return err
	}
	var port int
	if _, err := fmt.Sscan(u.Port(), &port); err != nil {
		return err
	}
	return s.start(ctx, port)
}

// Close ends everything.
func (s *Server) Close() error {
	err := s.Stop()
	if s.etcd != nil {
		s.etcd.Close()
	}
	return err
}
