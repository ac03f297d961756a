// Package kubetest gives tests a real Kubernetes API server with an etcd of its own.
// There is no other part of a cluster: what controllers, the scheduler and the kubelets
// would do, Hands does as far as a test needs it.
//
// The server is built once, by packaging/dev/kube.sh, and kept in ~/.cache/holdfast-test.
package kubetest

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
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
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"holdfast/internal/kube"
)

// Limits of starting.
const (
	buildLimit = 25 * time.Minute // on two cores that others use, too
	upLimit    = 2 * time.Minute
	tries      = 3 // of a port that somebody else may take meanwhile
)

// Server is a running API server.
type Server struct {
	URL    string
	dir    string
	token  string // of somebody who may do everything
	client *kube.Client
	etcd   *embed.Etcd
	cmd    *exec.Cmd
	ended  chan error
}

// Binary is the path of the API server, which is built where it is not there yet.
func Binary(ctx context.Context) (string, error) {
	_, file, _, _ := runtime.Caller(0)
	script := filepath.Join(filepath.Dir(file), "../../../packaging/dev/kube.sh")
	ctx, cancel := context.WithTimeout(ctx, buildLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, script)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("building the API server: %w\n%s", err, complaint.Bytes())
	}
	return strings.TrimSpace(out.String()), nil
}

// Start starts a server for a test, and ends it with that. -short skips the test.
func Start(t testing.TB) *Server {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: a real API server takes minutes to build")
	}
	s, err := Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Open starts a server that keeps its files in dir. The caller closes it.
func Open(ctx context.Context, dir string) (*Server, error) {
	binary, err := Binary(ctx)
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, token: rand.Text()}
	if err := s.prepare(); err != nil {
		return nil, err
	}
	if err := s.startEtcd(); err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		err = s.start(ctx, binary, 0)
		if err == nil || try == tries || ctx.Err() != nil {
			break
		}
		s.client = nil // it is at another port next time
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
	return errors.Join(
		os.WriteFile(s.file("accounts.pem"), pem.EncodeToMemory(block), 0o600),
		os.WriteFile(s.file("tokens.csv"), []byte(s.token+",admin,1,system:masters\n"), 0o600))
}

func (s *Server) file(name string) string { return filepath.Join(s.dir, name) }

func (s *Server) startEtcd() error {
	conf := embed.NewConfig()
	conf.Dir = s.file("etcd")
	conf.ListenPeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	conf.ListenClientUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	conf.AdvertiseClientUrls = conf.ListenClientUrls
	conf.UnsafeNoFsync = true // nothing here outlives a crash of the machine
	conf.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e, err := embed.StartEtcd(conf)
	if err != nil {
		return fmt.Errorf("starting etcd: %w", err)
	}
	s.etcd = e
	<-e.Server.ReadyNotify()
	return nil
}

// start starts the API server and waits until it serves. Port 0 is any.
func (s *Server) start(ctx context.Context, binary string, port int) error {
	if port == 0 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		port = l.Addr().(*net.TCPAddr).Port
		l.Close()
	}
	s.URL = fmt.Sprintf("https://127.0.0.1:%d", port)
	log, err := os.OpenFile(s.file("kube-apiserver.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	s.cmd = exec.Command(binary,
		"--etcd-servers=http://"+s.etcd.Clients[0].Addr().String(),
		fmt.Sprintf("--secure-port=%d", port), "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
		"--cert-dir="+s.file("certs"), "--token-auth-file="+s.file("tokens.csv"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+s.file("accounts.pem"), "--service-account-signing-key-file="+s.file("accounts.pem"),
		"--service-cluster-ip-range=10.0.0.0/24", "--authorization-mode=Node,RBAC",
		// Nobody here makes the service account that each namespace has.
		"--disable-admission-plugins=ServiceAccount",
		"--allow-privileged=true", "--profiling=false", "--endpoint-reconciler-type=none")
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

// await waits until the server says that it is ready.
func (s *Server) await(ctx context.Context) error {
	deadline := time.Now().Add(upLimit)
	for {
		ca, err := os.ReadFile(s.file("certs/apiserver.crt"))
		if err == nil && s.client == nil { // one that was started again is the same
			s.client, err = kube.New(s.config(ca), kube.Options{})
		}
		if err == nil {
			if err = s.Do(ctx, http.MethodGet, "/readyz", nil, nil); err == nil {
				return nil
			}
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

func (s *Server) log() string {
	b, _ := os.ReadFile(s.file("kube-apiserver.log")) // for a message only
	return string(b[max(0, len(b)-4000):])
}

func (s *Server) config(ca []byte) kube.Config {
	return kube.Config{Server: s.URL, CA: ca, Token: func(context.Context, bool) (string, error) { return s.token, nil }, Namespace: "default"}
}

// Config is that of somebody who may do everything.
func (s *Server) Config() kube.Config { return s.client.Config() }

// Client is one of somebody who may do everything.
func (s *Server) Client() *kube.Client { return s.client }

// Kubeconfig writes a kubeconfig of somebody who may do everything.
func (s *Server) Kubeconfig(t testing.TB) string {
	t.Helper()
	return s.kubeconfig(t, s.URL, s.file("certs/apiserver.crt"))
}

func (s *Server) kubeconfig(t testing.TB, url, ca string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: test
contexts:
- name: test
  context: {cluster: test, user: admin}
clusters:
- name: test
  cluster: {server: %q, certificate-authority: %q}
users:
- name: admin
  user: {token: %q}
`, url, ca, s.token)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Stop ends the API server; etcd goes on.
func (s *Server) Stop() error {
	if s.cmd == nil || s.cmd.Process == nil {
		return nil
	}
	_ = s.cmd.Process.Kill() // fails where it has ended, which is what is wanted
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
	binary, err := Binary(ctx)
	if err != nil {
		return err
	}
	return s.start(ctx, binary, port)
}

// Close ends everything.
func (s *Server) Close() error {
	if s.client != nil {
		s.client.Close()
	}
	err := s.Stop()
	s.etcd.Close()
	return err
}

// Do asks the server with JSON, as somebody who may do everything. out may be nil. An
// answer that is none of success is an error.
func (s *Server) Do(ctx context.Context, method, path string, body, out any) error {
	kind := "application/json"
	if method == http.MethodPatch {
		kind = "application/merge-patch+json"
	}
	return s.client.Raw(ctx, method, path, kind, body, out)
}

// Must is Do in a test that needs it.
func (s *Server) Must(t testing.TB, method, path string, body, out any) {
	t.Helper()
	if err := s.Do(t.Context(), method, path, body, out); err != nil {
		t.Fatal(err)
	}
}

// Clean removes the nodes, pods, ReplicaSets, DaemonSets, budgets and leases that
// there are, so that the next test finds an empty cluster.
func (s *Server) Clean(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), upLimit)
	defer cancel()
	for _, kind := range []string{"apps/v1/replicasets", "apps/v1/daemonsets", "policy/v1/poddisruptionbudgets", "coordination.k8s.io/v1/leases"} {
		if err := s.each(ctx, "/apis/"+kind); err != nil {
			t.Error(err)
		}
	}
	for _, kind := range []string{"pods", "nodes"} {
		if err := s.each(ctx, "/api/v1/"+kind); err != nil {
			t.Error(err)
		}
	}
}

// each deletes all objects of a kind at once.
func (s *Server) each(ctx context.Context, path string) error {
	all, err := items[kube.Pod](ctx, s, path)
	if err != nil {
		return err
	}
	at := strings.LastIndex(path, "/")
	for _, o := range all {
		p := path + "/" + o.Meta.Name
		if ns := o.Meta.Namespace; ns != "" {
			p = path[:at] + "/namespaces/" + ns + path[at:] + "/" + o.Meta.Name
		}
		if strings.HasPrefix(o.Meta.Namespace, "kube-") {
			continue // the API server's own
		}
		if err := gone(s.Do(ctx, http.MethodDelete, p, Object{"gracePeriodSeconds": 0}, nil)); err != nil {
			return err
		}
	}
	return nil
}
