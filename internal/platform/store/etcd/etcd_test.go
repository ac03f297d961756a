package etcd

import (
	"context"
	"os"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"holdfast/bench/rig"
	"holdfast/internal/platform/store"
)

func TestMain(m *testing.M) {
	if code, played := rig.PlayMember(); played {
		os.Exit(code)
	}
	goleak.VerifyTestMain(m)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
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
