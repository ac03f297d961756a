package etcd

import (
	"context"
	"os"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"holdfast/internal/platform/store"
	"holdfast/internal/platform/store/storetest"
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
	s := open(t, t.TempDir())
	storetest.Run(t, storetest.Subject{
		Open: func(t *testing.T) store.Store {
			t.Cleanup(func() { wipe(t, s.store) })
			return s.Store()
		},
		Forget: forget,
	})
}

// wipe removes all keys that a test has left.
func wipe(t *testing.T, s *Store) {
	t.Helper()
	if _, err := s.client.Delete(context.Background(), prefix, clientv3.WithPrefix()); err != nil {
		t.Error(err)
	}
}

// forget compacts the whole history.
func forget(t *testing.T, s store.Store) {
	t.Helper()
	st := s.(*Store)
	_, at, err := st.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.client.Compact(t.Context(), st.raw(at)); err != nil {
		t.Fatal(err)
	}
}
