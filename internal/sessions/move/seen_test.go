package move

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast"
	"holdfast/test/memstore"
)

// A node with a suspended session runs an older version for a while, under which the
// session lives again. The memory of before is then never restored, whether the store
// remembers that life or not.
func TestMemoryIsNotOlderThanTheLastLife(t *testing.T) {
	for name, c := range map[string]struct {
		history int  // of the store, in events
		lives   bool // the session lives under the older version
		says    string
	}{
		"no other version":         {1000, false, ""},
		"a life":                   {1000, true, "gone"}, // it is removed, or refused if the claim comes first
		"a life that is forgotten": {2, true, lostUnseen},
		"nothing is known":         {2, false, lostUnseen},
	} {
		t.Run(name, func(t *testing.T) {
			m, all := storedIn(t, memstore.New(c.history), "a")
			m.work, m.seen.file = t.TempDir(), filepath.Join(t.TempDir(), "seen.json")
			m.saveSeen(t.Context())
			m.saveSeen(t.Context()) // writes the revision of the check before

			lease, _, err := m.o.Store.Grant(t.Context(), time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			live := func(key holdfast.SessionKey) {
				t.Helper()
				o := m.claimedByOld(t, key)
				if _, err := m.o.Store.Release(t.Context(), o); err != nil {
					t.Fatal(err)
				}
			}
			if c.lives {
				live("a")
			}
			for range 3 {
				live("other")
			}

			// The agent of this version returns, and the session is claimed.
			ctx, cancel := context.WithCancel(t.Context())
			ran := make(chan error, 1)
			go func() { ran <- m.Run(ctx) }()
			defer func() {
				cancel()
				if err := <-ran; err != nil {
					t.Error(err)
				}
			}()
			<-m.suspendeds.begun
			o, err := m.o.Store.Claim(t.Context(), holdfast.Owner{Key: "a", Node: "n1", State: holdfast.Claimed}, lease)
			if err != nil {
				t.Fatal(err)
			}
			left := all["a"]
			if strings.Contains(o.SuspendNote, lostUnseen) {
				left.Lost = lostUnseen
			}
			_, err = m.takeSuspended(t.Context(), o, left)
			switch says := left.Lost; {
			case c.says == "" && (err != nil || says != ""):
				t.Errorf("%v, %q", err, says)
			case c.says == lostUnseen && (err == nil || says != lostUnseen):
				t.Errorf("%v, %q", err, says)
			case c.says == "gone" && err == nil:
				t.Error("the memory of before is restored")
			}
		})
	}
}

// Another node gets an image only for the first claim after the suspension.
func TestGivenForTheNextClaimOnly(t *testing.T) {
	m, all := storedIn(t, memstore.New(1000), "a")
	m.suspendeds.add("a", all["a"].Epoch)
	m.suspendeds.begin()
	old := m.claimedByOld(t, "a")
	if _, err := m.o.Store.Release(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	next := m.claimedByOld(t, "a")
	for _, o := range []holdfast.Owner{old, next} {
		m.Claimed(o.Key, o.Epoch)
	}
	var out strings.Builder
	if err := m.Give(t.Context(), "a", all["a"].Epoch, all["a"].Epoch, &out); err == nil || !strings.Contains(err.Error(), "it was running at epoch") || out.Len() > 0 {
		t.Errorf("%v, %d bytes", err, out.Len())
	}
}

// A claim that has not taken the image does not keep the next one from it.
func TestGivenAfterAClaimWithoutIt(t *testing.T) {
	m, all := storedIn(t, memstore.New(1000), "a")
	epoch := all["a"].Epoch
	m.suspendeds.add("a", epoch)
	m.suspendeds.begin()
	unused := m.claimedByOld(t, "a")
	if _, err := m.o.Store.Release(t.Context(), unused); err != nil {
		t.Fatal(err)
	}
	m.Claimed("a", unused.Epoch)
	next := m.claimedByOld(t, "a")
	go m.Claimed("a", next.Epoch) // it may come later than the request for the image
	var out strings.Builder
	if err := m.Give(t.Context(), "a", epoch, unused.Epoch, &out); err != nil || out.Len() == 0 {
		t.Errorf("%v, %d bytes", err, out.Len())
	}
}
