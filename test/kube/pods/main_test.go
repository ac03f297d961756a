// Package pods_test tests the agent of a Kubernetes node with a real API server and a real
// container runtime. Instead of a kubelet, the tests do its work.
package pods_test

import (
	"fmt"
	"log/slog"
	"os"
	"testing"

	"holdfast/test/kube/kubetest"
	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
)

// shared is the package's API server.
var shared kubetest.Shared

func TestMain(m *testing.M) {
	if !lab.Inside() {
		os.Exit(labtest.Main(m)) // calls this function again, inside the lab
	}
	code := m.Run()
	if err := shared.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// cluster returns the API server, without nodes and pods.
func cluster(t *testing.T) *kubetest.Server {
	t.Helper()
	return shared.Cluster(t)
}

// quiet is a log that discards everything.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }
