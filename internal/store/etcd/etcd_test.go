package etcd

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"holdfast/internal/store"
	"holdfast/internal/store/storetest"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		os.Exit(child(dir))
	}
	goleak.VerifyTestMain(m)
}

// open starts a server that ends with the test.
func open(t *testing.T, dir string) *Server {
	t.Helper()
	s, err := Open(t.Context(), ServerConfig{DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeServer(t, s) })
	return s
}

func closeServer(t *testing.T, s *Server) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestEmbedded(t *testing.T) {
	storetest.Run(t, storetest.Subject{
		Open:   func(t *testing.T) store.Store { return open(t, t.TempDir()).Store() },
		Forget: forget,
	})
}

// forget compacts everything away.
func forget(t *testing.T, s store.Store) {
	t.Helper()
	st := s.(*Store)
	_, at, err := st.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.client.Compact(t.Context(), int64(at)); err != nil {
		t.Fatal(err)
	}
}
