package etcd

import (
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

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
}
