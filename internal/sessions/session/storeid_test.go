package session

import (
	"testing"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/test/memstore"
	"holdfast/test/poll"
)

func TestStoreID(t *testing.T) {
	s := memstore.New(10)
	first, made, err := StoreID(t.Context(), s)
	if err != nil || !made || first == "" {
		t.Fatalf("%q, %v, %v", first, made, err)
	}
	if again, made, err := StoreID(t.Context(), s); err != nil || made || again != first {
		t.Errorf("%q became %q, %v, %v", first, again, made, err)
	}
	if other, _, err := StoreID(t.Context(), memstore.New(10)); err != nil || other == first {
		t.Errorf("two stores are %q: %v", other, err)
	}
}

// Containers of this node's id whose records are in another store are neither taken over
// nor killed. A container of an earlier version, which names no store, is the node's own.
func TestAdoptLeavesContainersOfAnotherStore(t *testing.T) {
	fake, mem := newFakeEngine(t), memstore.New(100)
	lease, _, err := mem.Grant(t.Context(), 1e12)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []holdfast.SessionKey{"other", "old", "ours"} {
		labels := map[string]string{LabelNode: "n1", LabelSession: string(key), LabelEpoch: "1"}
		switch key {
		case "other":
			labels[LabelStore] = "store-2"
		case "ours":
			labels[LabelStore] = "store-1"
		}
		if _, err := fake.Create(t.Context(), engine.Spec{Name: string(key), Labels: labels}); err != nil {
			t.Fatal(err)
		}
	}
	// A record of another life of the key does not make the container this store's.
	if _, err := mem.Claim(t.Context(), holdfast.Owner{Key: "other", Node: "n1", State: holdfast.Claimed}, lease); err != nil {
		t.Fatal(err)
	}
	n, watcher := unstarted(t, setup{id: "n1", engine: fake, store: mem, cfg: Config{Store: "store-1"}})
	found, err := n.Adopt(t.Context())
	if err != nil || found.Orphans != 2 || found.Released != 1 {
		t.Errorf("%+v, %v", found, err)
	}
	n.run(t, watcher)
	poll.Until(t, "the strays are removed", func() bool { list, err := fake.List(t.Context(), nil); return err == nil && len(list) == 1 })
	if _, err := fake.Inspect(t.Context(), "other"); err != nil {
		t.Errorf("the other store's container: %v", err)
	}
}
