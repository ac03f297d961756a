// Package pods_test has the agent of a Kubernetes node against a real API server and a
// real container runtime. There is no kubelet: the tests do its part.
package pods_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"

	"holdfast/internal/lab"
	"holdfast/internal/lab/labtest"
	"holdfast/test/kube/kubetest"
)

// shared is the package's API server, started by the first test that asks.
var shared struct {
	once   sync.Once
	server *kubetest.Server
	dir    string
	err    error
}

func TestMain(m *testing.M) {
	if !lab.Inside() {
		os.Exit(labtest.Main(m)) // which comes back here, inside
	}
	code := m.Run()
	if shared.server != nil {
		if err := shared.server.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	os.RemoveAll(shared.dir)
	os.Exit(code)
}

// cluster returns the API server, without nodes and pods.
func cluster(t *testing.T) *kubetest.Server {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: a real API server takes minutes to build")
	}
	shared.once.Do(func() {
		if shared.dir, shared.err = os.MkdirTemp("", "pods-"); shared.err == nil {
			shared.server, shared.err = kubetest.Open(context.Background(), shared.dir)
		}
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	t.Cleanup(func() { shared.server.Clean(t) })
	return shared.server
}

// quiet is a log that nobody reads.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }
