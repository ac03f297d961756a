// Package kube_test has the Kubernetes parts against a real API server.
package kube_test

import (
	"fmt"
	"log/slog"
	"os"
	"testing"

	"holdfast/test/kube/kubetest"
)

// shared is the package's API server.
var shared kubetest.Shared

func TestMain(m *testing.M) {
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

// quiet is a log that nobody reads.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }
