package kubedrain_test

import (
	"fmt"
	"os"
	"testing"

	"holdfast/test/kube/kubetest"
)

// shared is the API server of these tests.
var shared kubetest.Shared

func TestMain(m *testing.M) {
	code := m.Run()
	if err := shared.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func cluster(t *testing.T) *kubetest.Server {
	t.Helper()
	return shared.Cluster(t)
}
