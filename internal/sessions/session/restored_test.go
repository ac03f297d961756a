package session

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/platform/store"
	"holdfast/test/memstore"
	"holdfast/test/poll"
)

// runRestores runs a Restores until the test ends or stop is called.
func runRestores(t *testing.T, s store.Store, file string, hold time.Duration) (stop func()) {
	t.Helper()
	r := NewRestores(s, file, hold, prometheus.NewRegistry(), testLog(t))
	r.Load()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = r.Run(ctx) }()
	stop = func() { cancel(); <-ended }
	t.Cleanup(stop)
	return stop
}

// TestStoreRestored: the store is set back to a moment at which it had the record of
// one session that runs, of one that has ended since, and none of a third one.
func TestStoreRestored(t *testing.T) {
	n, fake := fakeNode(t, setup{})
	runRestores(t, n.store, filepath.Join(t.TempDir(), "seen"), 500*time.Millisecond)
	kept, ended := n.serve(t, "kept"), n.serve(t, "ended")
	restore := n.store.Backup()
	if _, err := n.Stop(t.Context(), "ended"); err != nil {
		t.Fatal(err)
	}
	lost := n.serve(t, "lost")

	restore()
	<-lost.Left
	poll.Until(t, "the container without a record is dead", func() bool { return len(fake.running()["lost"]) == 0 })
	if _, err := n.store.Claim(t.Context(), holdfast.Owner{Key: "early", Node: "other"}, store.LeaseID(n.lease.Load())); !errors.Is(err, store.ErrRestored) {
		t.Errorf("a claim before every node can have noticed: %v", err)
	}
	poll.Until(t, "the record without a container is released", func() bool { return len(n.records(t)) == 1 })
	for _, r := range []holdfast.Route{ended, lost} {
		if again := n.serve(t, r.Key); again.Epoch <= lost.Epoch {
			t.Errorf("%s: epoch %d, and there was %d before the restore", r.Key, again.Epoch, lost.Epoch)
		}
	}
	if r := n.serve(t, "kept"); r.Epoch != kept.Epoch || r.ContainerID != kept.ContainerID {
		t.Errorf("%v became %v", kept, r)
	}
	if bad := fake.wrong(); len(bad) > 0 {
		t.Error(bad)
	}
}

// TestStoreRestoredBetweenAgents: the agent ends, the store is restored, and the next
// agent notices by the file that the first one kept. The third one waits as well.
func TestStoreRestoredBetweenAgents(t *testing.T) {
	mem, file := memstore.New(1000), filepath.Join(t.TempDir(), "seen")
	stop := runRestores(t, mem, file, time.Hour)
	n, _ := fakeNode(t, setup{store: mem, id: "n1"})
	restore := mem.Backup()
	lost := n.serve(t, "alice")
	stop()
	seen := mem.Seen()
	if seen.Epoch < lost.Epoch {
		t.Errorf("epoch %d was seen, and %d exists", seen.Epoch, lost.Epoch)
	}
	restore()
	for _, what := range []string{"next", "third"} {
		later := memstore.New(1) // a store of that agent's, far behind
		if _, err := later.Find(t.Context()); err != nil {
			t.Fatal(err)
		}
		stop := runRestores(t, later, file, time.Hour)
		if !later.Seen().Restored {
			t.Errorf("the %s agent does not notice", what)
		}
		stop()
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	runRestores(t, memstore.New(1), file, 0) // a broken file does not stop the agent
}

// TestClaimOfBeforeARestoreIsNotTaken: the store applied a claim of this node and was
// restored before it answered.
func TestClaimOfBeforeARestoreIsNotTaken(t *testing.T) {
	n, _ := fakeNode(t, setup{})
	old, err := n.store.Claim(t.Context(), holdfast.Owner{Key: "alice", Node: n.cfg.Node, State: holdfast.Claimed}, store.LeaseID(n.lease.Load()))
	if err != nil {
		t.Fatal(err)
	}
	a := &attempt{m: n.Manager}
	if !a.isLostClaim(old) {
		t.Error("a claim whose answer was lost is not taken")
	}
	if old.Revision += 1 << 40; a.isLostClaim(old) {
		t.Error("the epoch of a claim from before a restore is too low")
	}
}
