package nfqueue

import (
	"errors"
	"io/fs"
	"os"
	"testing"

	"holdfast/internal/lab/labtest"
	"holdfast/internal/linux/nft"
	"holdfast/internal/protect"
	"holdfast/internal/protect/protecttest"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// A table that the kernel does not remove with its process is noted, and what is
// noted is enough to remove it. The table of a hold that stands is not touched.
func TestTidy(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it needs root, and a network namespace of its own")
	}
	hold := func(b *Backend) *held {
		to := protect.Target{Addresses: protecttest.Addresses(t, protecttest.FreePort(t)), Forwarded: true}
		h, err := b.Hold(t.Context(), to)
		if err != nil {
			t.Fatal(err)
		}
		return h.(*held)
	}
	before := protecttest.Look(t)
	stands := hold(New())
	if left := stands.Leaves(); left != "" {
		t.Errorf("a table that goes with its process is noted: %q", left)
	}
	beside := protecttest.Look(t)

	old := New()
	old.unowned = true
	dead := hold(old)
	left := dead.Leaves()
	// What dies with a process.
	if err := dead.queue.Close(); err != nil {
		t.Fatal(err)
	}
	dead.serving.Wait()
	if _, err := nft.Add(nft.Spec{Name: left}); !errors.Is(err, fs.ErrExist) {
		t.Fatalf("the table %q is not left, and this shows nothing: %v", left, err)
	}
	if err := New().Tidy(t.Context(), dead.target, left); err != nil {
		t.Fatal(err)
	}
	protecttest.NothingLeft(t, beside)
	if err := dead.table.Remove(); err != nil { // for its socket
		t.Error(err)
	}
	if err := stands.Release(t.Context()); err != nil {
		t.Error(err)
	}
	protecttest.NothingLeft(t, before)
}
