package kubetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// Shared is the API server of a package's tests, and the program holdfast that they run. Each
// is created by the first test that needs it.
type Shared struct {
	once   sync.Once
	server *Server
	dir    string
	err    error

	building sync.Once
	program  string
	buildErr error
}

// Cluster returns the API server, without nodes and pods, to one test at a time.
func (s *Shared) Cluster(t *testing.T) *Server {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: a real API server takes minutes to build")
	}
	s.once.Do(func() {
		if s.dir, s.err = os.MkdirTemp("", "kube-"); s.err == nil {
			s.server, s.err = Open(context.Background(), s.dir)
		}
	})
	if s.err != nil {
		t.Fatal(s.err)
	}
	t.Cleanup(func() { s.server.Clean(t) })
	return s.server
}

// Program returns the path of holdfast, built from this tree. Call it after Cluster.
func (s *Shared) Program(t *testing.T) string {
	t.Helper()
	s.building.Do(func() {
		s.program = filepath.Join(s.dir, "holdfast")
		build := exec.Command("go", "build", "-trimpath", "-tags=grpcnotrace", "-o", s.program, "holdfast/cmd/holdfast")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			s.buildErr = fmt.Errorf("building holdfast: %w\n%s", err, out)
		}
	})
	if s.buildErr != nil {
		t.Fatal(s.buildErr)
	}
	return s.program
}

// Close ends the server and removes all files, after all tests.
func (s *Shared) Close() error {
	var err error
	if s.server != nil {
		err = s.server.Close()
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}
