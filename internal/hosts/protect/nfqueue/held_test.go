package nfqueue

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/protecttest"
	"holdfast/internal/platform/linux/nfqueue"
	"holdfast/internal/platform/linux/nft"
	"holdfast/test/lab/labtest"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// A table that the kernel does not remove with its process is reported as residue, which
// is sufficient to remove it. The table of a current hold stays.
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
	if left := stands.Residue(); left != "" {
		t.Errorf("the residue names a table that ends with its process: %q", left)
	}
	beside := protecttest.Look(t)

	old := New()
	old.unowned = true
	dead := hold(old)
	left := dead.Residue()
	// These resources end with a process.
	if err := dead.queue.Close(); err != nil {
		t.Fatal(err)
	}
	dead.serving.Wait()
	if _, err := nft.Add(nft.Spec{Name: left}); !errors.Is(err, fs.ErrExist) {
		t.Fatalf("the table %q is not left, so the test shows nothing: %v", left, err)
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

// A repeated SYN is not another connect. While the first one waits, it is dropped. Later
// it waits like any other, and is not counted.
func TestSYNAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it needs root, and a network namespace of its own")
	}
	q, err := nfqueue.Open(firstQueue)
	if err != nil {
		t.Fatal(err)
	}
	h := newHeld(protect.Target{}, q)
	from, to := netip.MustParseAddrPort("127.0.0.1:40000"), netip.MustParseAddrPort("127.0.0.1:80")
	first := packet4(0, from, to)
	other := slices.Clone(first)
	other[20+tcpSeq]++ // another connect from the same port
	id := uint32(0)
	for i, c := range []struct {
		packet        []byte
		released      bool // before the connect arrives
		held, waiting int
	}{
		{first, false, 1, 1},
		{first, false, 1, 1},
		{first, true, 1, 1},
		{first, false, 1, 1},
		{other, true, 2, 1},
	} {
		if c.released {
			h.release(1)
		}
		id++
		h.take(nfqueue.Packet{ID: id, Data: c.packet}, time.Now())
		if s := h.Stats(); s.Held != c.held || s.Waiting != c.waiting {
			t.Errorf("%d: %+v, want %d held, %d waiting", i, s, c.held, c.waiting)
		}
	}
	if err := h.end(); err != nil {
		t.Error(err)
	}
}
