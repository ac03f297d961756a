// Package kubetest gives tests a real Kubernetes API server with its own etcd. It runs no
// other part of a cluster. Hands do the work of controllers, scheduler and kubelets that
// tests need.
//
// packaging/dev/kube.sh builds the server once, into ~/.cache/holdfast-test.
package kubetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/internal/hosts/kube"
	"holdfast/test/lab/apiserver"
)

// Limits of building, and of cleaning up.
const (
	buildLimit = 25 * time.Minute // on two busy cores
	cleanLimit = 2 * time.Minute
)

// Server is a running API server.
type Server struct {
	*apiserver.Server
	client *kube.Client
}

// Kubelet is the name of the part of Kubernetes that runs pods on a node.
const Kubelet = "kubelet"

// Binary returns the path of a part of Kubernetes, by default the API server. It builds the
// part if it is missing.
func Binary(ctx context.Context, part ...string) (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	const name = "packaging/dev/kube.sh"
	script := filepath.Join(dir, name)
	for script != "/"+name {
		if _, err := os.Stat(script); err == nil {
			break
		}
		dir = filepath.Dir(dir)
		script = filepath.Join(dir, name)
	}
	ctx, cancel := context.WithTimeout(ctx, buildLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, script, part...)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("building a part of Kubernetes: %w\n%s", err, complaint.Bytes())
	}
	return strings.TrimSpace(out.String()), nil
}

// Open starts a server with its files in dir, and with these users. The caller closes it.
func Open(ctx context.Context, dir string, users ...apiserver.User) (*Server, error) {
	binary, err := Binary(ctx)
	if err != nil {
		return nil, err
	}
	s := &Server{}
	if s.Server, err = apiserver.Start(ctx, apiserver.Options{Binary: binary, Dir: dir, Users: users}); err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(s.CAFile())
	if err == nil {
		s.client, err = kube.New(s.config(ca), kube.Options{})
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Server) config(ca []byte) kube.Config {
	return kube.Config{Server: s.URL, CA: ca, Token: func(context.Context, bool) (string, error) { return s.Token, nil }, Namespace: "default"}
}

// Config returns an administrator's configuration.
func (s *Server) Config() kube.Config { return s.client.Config() }

// Client returns an administrator's client.
func (s *Server) Client() *kube.Client { return s.client }

// Kubeconfig writes an administrator's kubeconfig.
func (s *Server) Kubeconfig(t testing.TB) string {
	t.Helper()
	return s.kubeconfig(t, s.URL, s.CAFile())
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
`, url, ca, s.Token)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Close ends everything.
func (s *Server) Close() error {
	if s.client != nil {
		s.client.Close()
	}
	return s.Server.Close()
}

// Do sends a JSON request to the server as an administrator. out may be nil. A status that is
// not a success is an error.
func (s *Server) Do(ctx context.Context, method, path string, body, out any) error {
	kind := "application/json"
	if method == http.MethodPatch {
		kind = "application/merge-patch+json"
	}
	return s.client.Raw(ctx, method, path, kind, body, out)
}

// Must is Do; the test fails after an error.
func (s *Server) Must(t testing.TB, method, path string, body, out any) {
	t.Helper()
	if err := s.Do(t.Context(), method, path, body, out); err != nil {
		t.Fatal(err)
	}
}

// Clean removes all nodes, pods, workloads, budgets, autoscalers and leases, so that the next
// test finds an empty cluster.
func (s *Server) Clean(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), cleanLimit)
	defer cancel()
	for _, kind := range []string{"apps/v1/deployments", "apps/v1/replicasets", "apps/v1/statefulsets", "apps/v1/daemonsets", "autoscaling/v2/horizontalpodautoscalers", "policy/v1/poddisruptionbudgets", "coordination.k8s.io/v1/leases"} {
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
			continue // it belongs to the API server
		}
		if err := gone(s.Do(ctx, http.MethodDelete, p, Object{"gracePeriodSeconds": 0}, nil)); err != nil {
			return err
		}
	}
	return nil
}
