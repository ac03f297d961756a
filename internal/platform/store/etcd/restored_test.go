package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"holdfast"
	"holdfast/internal/platform/store"
	"holdfast/internal/platform/store/storetest"
)

// restorable is an etcd of one member whose data directory can be set back.
type restorable struct {
	conf *embed.Config
	etcd *embed.Etcd
}

func startRestorable(t *testing.T) *restorable {
	t.Helper()
	conf := embed.NewConfig()
	conf.Dir = filepath.Join(t.TempDir(), "etcd")
	conf.ListenPeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	conf.ListenClientUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	conf.TickMs, conf.ElectionMs = 10, 100
	conf.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	r := &restorable{conf: conf}
	r.start(t)
	conf.ListenClientUrls[0].Host = r.etcd.Clients[0].Addr().String() // the same one after a restore
	t.Cleanup(func() { r.etcd.Close() })
	return r
}

func (r *restorable) start(t *testing.T) {
	t.Helper()
	var err error
	r.etcd, err = embed.StartEtcd(r.conf)
	must(t, err)
	<-r.etcd.Server.ReadyNotify()
}

// backup copies the data directory of the stopped member, and returns a function that
// puts the copy back.
func (r *restorable) backup(t *testing.T) (restore func()) {
	t.Helper()
	r.etcd.Close()
	copied := filepath.Join(t.TempDir(), "copy")
	must(t, os.CopyFS(copied, os.DirFS(r.conf.Dir)))
	r.start(t)
	return func() {
		r.etcd.Close()
		must(t, os.RemoveAll(r.conf.Dir))
		must(t, os.CopyFS(r.conf.Dir, os.DirFS(copied)))
		r.start(t)
	}
}

func (r *restorable) dial(t *testing.T) *Store {
	t.Helper()
	s, err := Dial(t.Context(), Config{Endpoints: []string{r.conf.ListenClientUrls[0].Host}, Timeout: 5 * time.Second})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

func TestRestored(t *testing.T) {
	r := startRestorable(t)
	storetest.RunRestored(t, storetest.Subject{
		Open:   func(t *testing.T) store.Store { return r.dial(t) },
		Backup: func(t *testing.T, _ store.Store) func() { return r.backup(t) },
	})
	t.Run("another node has raised the epochs", func(t *testing.T) { testRaisedByAnother(t, r.dial(t), r.dial(t)) })
	t.Run("only the records show it", func(t *testing.T) { testRewritten(t, r.dial(t)) })
}

// testRaisedByAnother: a node that has not noticed the restore learns of it at its next
// claim.
func testRaisedByAnother(t *testing.T, a, b *Store) {
	id, _, err := a.Grant(t.Context(), time.Hour)
	must(t, err)
	high := holdfast.Epoch(2 * a.base())
	a.Remember(store.Seen{Epoch: high})
	must(t, a.RaiseEpochs(t.Context()))
	for i, s := range []*Store{b, a} {
		o := holdfast.Owner{Key: holdfast.SessionKey(fmt.Sprint("raised-", i)), Node: "n1", State: holdfast.Claimed}
		if got, err := s.Claim(t.Context(), o, id); !errors.Is(err, store.ErrRestored) || !s.Seen().Restored {
			t.Fatalf("a claim with old epochs: %v, %v", got, err)
		}
		must(t, s.Resume(t.Context()))
		if o, err = s.Claim(t.Context(), o, id); err != nil || o.Epoch <= high {
			t.Errorf("epoch %d, and %d exists: %v", o.Epoch, high, err)
		}
	}
}

// testRewritten: etcd was restored with a raised revision and without its history. A
// reader has not seen a record that is older than what it has seen.
func testRewritten(t *testing.T, s *Store) {
	id, _, err := s.Grant(t.Context(), time.Hour)
	must(t, err)
	_, err = s.Claim(t.Context(), holdfast.Owner{Key: "old", Node: "n1", State: holdfast.Claimed}, id)
	must(t, err)
	owners, at, err := s.listAt(t.Context(), 0)
	must(t, err)
	s.lists.Add(owners[:0], at)
	for range 2 { // a watch may begin at the compacted revision itself
		must(t, s.PutNote(t.Context(), "later", nil, 0))
	}
	forget(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	events := s.Watch(ctx, at)
	if e := <-events; !e.Restored || len(e.Owners) != len(owners) || !s.Seen().Restored {
		t.Errorf("event %+v", e)
	}
	cancel()
	for range events {
		continue
	}
}
