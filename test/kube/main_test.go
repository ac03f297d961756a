// Package kube_test tests the Kubernetes packages against a real API server.
package kube_test

import (
	"fmt"
	"log/slog"
	"os"
	"testing"

	"holdfast/bench/rig"
	"holdfast/test/kube/kubetest"
)

// shared is the package's API server.
var shared kubetest.Shared

func TestMain(m *testing.M) {
	if code, played := rig.PlayMember(); played {
		os.Exit(code)
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
