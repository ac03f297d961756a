package agent

import (
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"holdfast"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// startEtcd runs an etcd of one member with a listener, like a user's own cluster. After a
// Close, the same dir and address start it again.
func startEtcd(t *testing.T, dir, client, peer string) *embed.Etcd {
	t.Helper()
	address := func(hostPort string) []url.URL { return []url.URL{{Scheme: "http", Host: hostPort}} }
	c := embed.NewConfig()
	c.Dir = dir
	c.ListenClientUrls, c.AdvertiseClientUrls = address(client), address(client)
	c.ListenPeerUrls, c.AdvertisePeerUrls = address(peer), address(peer)
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-e.Server.ReadyNotify():
	case <-time.After(time.Minute):
		t.Fatal("etcd was not ready within a minute")
	}
	return e
}

// etcdClient connects to an etcd until the test ends.
func etcdClient(t *testing.T, client string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{client}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// A node that cannot renew its lease in a shared store ends its sessions. It continues when
// the store is back.
func TestOwnEtcdThatGoesAway(t *testing.T) {
	labtest.NeedLong(t, "test/fleet TestEverythingHappens cuts nodes off from etcd")
	dir, client, peer := t.TempDir(), labtest.FreePort(t), labtest.FreePort(t)
	etcd := startEtcd(t, dir, client, peer)
	t.Cleanup(func() { etcd.Close() })
	h := newHost(t, "store: {endpoints: ['"+client+"'], renew: 200ms, fence: 6s, kill_budget: 2s, ttl: 16s}")
	h.start()
	h.open("alice")
	first := h.sessions()[0]

	// An agent that restarts after a kill before its lease has expired keeps the
	// lease.
	h.must("agent", "stop", "--keep")
	h.wait()
	h.start()
	h.open("alice")
	if again := h.sessions()[0]; again.Epoch != first.Epoch || again.ContainerID != first.ContainerID {
		t.Errorf("%v became %v", first, again)
	}

	// An operator deletes the record of a running session.
	inits := h.inits()
	c := etcdClient(t, client)
	if r, err := c.Delete(t.Context(), "/holdfast/v1/sessions/alice"); err != nil || r.Deleted != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	poll.Until(t, "the container without a record is dead", func() bool { return !alive(inits["alice"]) })
	h.open("alice")
	if again := h.sessions()[0]; again.Epoch <= first.Epoch {
		t.Errorf("epoch %d after %d", again.Epoch, first.Epoch)
	}

	inits = h.inits()
	etcd.Close()
	poll.Until(t, "the container is dead", func() bool { return !alive(inits["alice"]) })
	etcd = startEtcd(t, dir, client, peer)
	h.open("alice") // parked until the store is back
	if again := h.sessions()[0]; again.Epoch <= first.Epoch {
		t.Errorf("epoch %d after %d", again.Epoch, first.Epoch)
	}
}

// An operator restores etcd from a backup. No container runs without its record, and
// epochs do not go back.
func TestEtcdRestoredFromABackup(t *testing.T) {
	labtest.NeedLong(t, "restarts etcd twice and waits for a lease; the packages session and etcd test the same without an engine")
	dir, client, peer := filepath.Join(t.TempDir(), "etcd"), labtest.FreePort(t), labtest.FreePort(t)
	etcd := startEtcd(t, dir, client, peer)
	t.Cleanup(func() { etcd.Close() })
	h := newHost(t, "store: {endpoints: ['"+client+"'], renew: 300ms, fence: 12s, kill_budget: 2s, ttl: 16s}")
	h.start()
	h.open("alice")
	backup := filepath.Join(t.TempDir(), "backup")
	etcd.Close()
	if err := os.CopyFS(backup, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	etcd = startEtcd(t, dir, client, peer)
	c := etcdClient(t, client)
	for range 300 { // of other users: the restored etcd does not get there by itself soon
		if _, err := c.Put(t.Context(), "/other", ""); err != nil {
			t.Fatal(err)
		}
	}
	h.open("bob")
	var before holdfast.Epoch
	for _, s := range h.sessions() {
		before = max(before, s.Epoch)
	}
	bob := h.inits()["bob"]

	etcd.Close()
	if err := errors.Join(os.RemoveAll(dir), os.CopyFS(dir, os.DirFS(backup))); err != nil {
		t.Fatal(err)
	}
	etcd = startEtcd(t, dir, client, peer)
	poll.Until(t, "the container without a record is dead", func() bool { return !alive(bob) })
	h.open("bob")
	for _, s := range h.sessions() {
		if s.Key == "bob" && s.Epoch <= before {
			t.Errorf("epoch %d, and there was %d before the restore", s.Epoch, before)
		}
		// Without an outage longer than the fence, alice went on.
		if got := h.running()[string(s.Key)]; len(got) != 1 || got[0] != s.ContainerID {
			t.Errorf("%v has the containers %v", s.Owner, got)
		}
	}
}

func TestEtcdThatDoesNotAnswer(t *testing.T) {
	h := newHost(t, "store: {endpoints: ['"+labtest.FreePort(t)+"']}")
	r := h.run()
	if r.code != 4 || !strings.Contains(r.err, "error: ") || !strings.Contains(r.err, "hint: ") {
		t.Errorf("%+v", r)
	}
}
