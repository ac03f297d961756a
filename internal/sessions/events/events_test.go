package events

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/platform/metric"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func open(t *testing.T, dir string) *History {
	t.Helper()
	return Open(dir, "n1", metric.Registry{Registerer: prometheus.NewRegistry()}, quiet())
}

// emit emits n events and writes them.
func emit(h *History, n int) {
	for i := range n {
		h.Emit(holdfast.SessionEvent{Type: holdfast.EventReady, Key: holdfast.SessionKey(fmt.Sprintf("k%d", i))})
	}
	h.write()
}

// read returns the ids of all events that a reader gets without a wait, and the number of
// lost ones.
func read(t *testing.T, r *Reader) (ids []int64, lost int64) {
	t.Helper()
	for {
		some, err := r.Next(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		if len(some) == 0 {
			return ids, lost
		}
		for _, e := range some {
			if e.Type == holdfast.EventLost {
				lost += e.Lost
				continue
			}
			ids = append(ids, e.ID)
		}
	}
}

// A reader continues where it was, also with the next agent. One that falls behind the ring
// learns how many events it has missed.
func TestReaders(t *testing.T) {
	dir := t.TempDir()
	h := open(t, dir)
	slow := h.Read(End)
	emit(h, 3)
	if ids, lost := read(t, slow); len(ids) != 3 || ids[0] != 1 || lost != 0 {
		t.Errorf("%v, %d lost", ids, lost)
	}
	h = open(t, dir)
	emit(h, 2)
	if ids, lost := read(t, h.Read(3)); len(ids) != 2 || ids[0] != 4 || lost != 0 {
		t.Errorf("with the next agent: %v, %d lost", ids, lost)
	}
	if ids, _ := read(t, h.Read(Begin)); len(ids) != 5 {
		t.Errorf("from the beginning: %v", ids)
	}
	slow = h.Read(2)
	for range 4 {
		emit(h, ringSize)
	}
	last := int64(5 + 4*ringSize)
	ids, lost := read(t, slow)
	if n := int64(len(ids)); n == 0 || ids[n-1] != last || 2+lost+n != last {
		t.Errorf("%d events to %d, %d lost", len(ids), ids[len(ids)-1], lost)
	}
	if _, lost := read(t, h.Read(last+1)); lost != -1 {
		t.Errorf("a number of another log: %d lost", lost)
	}
	if n := len(h.ring); n > 2*ringSize {
		t.Errorf("%d events are in memory", n)
	}
}

// A reader that waits gets the next event, and ends with its context.
func TestReaderWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := open(t, t.TempDir())
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = h.Run(ctx) }() // it returns nil
		got := make(chan holdfast.SessionEvent, 1)
		r := h.Read(End)
		go func() {
			some, err := r.Next(ctx, true)
			if err == nil {
				got <- some[0]
			}
		}()
		synctest.Wait()
		h.Emit(holdfast.SessionEvent{Type: holdfast.EventBoot, Key: "a"})
		if e := <-got; e.ID != 1 || e.Node != "n1" || e.At.IsZero() {
			t.Errorf("%+v", e)
		}
		cancel()
		if _, err := r.Next(ctx, true); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		synctest.Wait()
	})
}

// An epoch has one ending and one last event. What its own node knows replaces what another
// node has seen.
func TestOneEndingOfAnEpoch(t *testing.T) {
	dir := t.TempDir()
	h := open(t, dir)
	now := time.Now().UTC()
	seen := holdfast.Ending{Key: "a", Node: "n2", Epoch: 5, At: now, Reason: holdfast.EndNodeLost, By: holdfast.ByKernel, SeenBy: "n1"}
	known := holdfast.Ending{Key: "a", Epoch: 5, At: now, Reason: holdfast.EndExited, By: holdfast.ByContainer, Log: strings.Repeat("x\n", 9000)}
	h.Ended(seen)
	if h.Knows("a", 5) {
		t.Error("another node's view is taken for its own")
	}
	h.Ended(known, seen)
	h.Ended(known)
	for _, h := range []*History{h, open(t, dir)} {
		all := h.List("", 0)
		if len(all) != 1 || all[0].Reason != holdfast.EndExited || !h.Knows("a", 5) {
			t.Errorf("%+v", all)
		} else if n := strings.Count(all[0].Log, "\n"); n != holdfast.MaxEndLines {
			t.Errorf("%d lines are kept", n)
		}
	}
	h.write()
	if ids, _ := read(t, h.Read(Begin)); len(ids) != 2 { // of the other node's view, and of its own
		t.Errorf("events %v", ids)
	}
	merged := merge([]holdfast.Ending{seen, known, {Key: "b", At: now.Add(-time.Hour)}, {Key: "b", At: now.Add(-time.Minute)}}, 2)
	if len(merged) != 2 || merged[0].Reason != holdfast.EndExited || merged[1].Key != "b" || merged[1].At != now.Add(-time.Minute) {
		t.Errorf("merged: %+v", merged)
	}
}

// One session that fails again and again leaves the others their place, in memory and on
// the disk.
func TestEndingsAreBounded(t *testing.T) {
	dir := t.TempDir()
	h := OpenEndings(dir, quiet())
	now := time.Now().UTC()
	h.Add(holdfast.Ending{Key: "old", Epoch: 1, At: now.Add(-keepEndings - time.Minute)}, holdfast.Ending{Key: "quiet", Epoch: 2, At: now})
	for i := range 60 {
		var some []holdfast.Ending
		for j := range 50 {
			some = append(some, holdfast.Ending{Key: "noisy", Epoch: holdfast.Epoch(10 + 50*i + j), At: now, Log: strings.Repeat("a long line of a boot that fails\n", 200)})
		}
		h.Add(some...)
	}
	for _, h := range []*Endings{h, OpenEndings(dir, quiet())} {
		if n := len(h.List("noisy", 0)); n != maxOfKey || len(h.List("quiet", 0)) != 1 || len(h.List("old", 0)) != 0 {
			t.Errorf("%d of one session: %d in all", n, len(h.List("", 0)))
		}
	}
	if info, err := os.Stat(filepath.Join(dir, endingsFile)); err != nil || info.Size() > rewriteAt+maxBytes {
		t.Errorf("%v, %v", info, err)
	}
	var many []holdfast.Ending
	for i := range 2 * maxEndings {
		many = append(many, holdfast.Ending{Key: holdfast.SessionKey(fmt.Sprintf("k%d", i)), Epoch: holdfast.Epoch(10_000 + i), At: now})
	}
	h.Add(many...)
	if n := len(h.List("", 0)); n != maxEndings {
		t.Errorf("%d are kept", n)
	}
}

// Nodes that do not answer are named, and the others count.
func TestFleetIsAsked(t *testing.T) {
	own := OpenEndings(t.TempDir(), quiet())
	own.Add(holdfast.Ending{Key: "a", Node: "n1", Epoch: 1, At: time.Now()})
	f := Fleet{Self: "n1", Own: own,
		Nodes: func(context.Context) ([]holdfast.Node, error) {
			return []holdfast.Node{{ID: "n1"}, {ID: "n2"}, {ID: "n3"}}, nil
		},
		Ask: func(_ context.Context, n holdfast.Node, key holdfast.SessionKey, _ int) ([]holdfast.Ending, error) {
			if n.ID == "n3" {
				return nil, errors.New("connection refused")
			}
			return []holdfast.Ending{{Key: key, Node: n.ID, Epoch: 2, At: time.Now()}}, nil
		},
	}
	rep, err := f.Report(t.Context(), "a", 0)
	if err != nil || len(rep.Endings) != 2 || rep.Endings[0].Node != "n2" || len(rep.NoAnswer) != 1 || rep.NoAnswer[0].Node != "n3" {
		t.Errorf("%+v, %v", rep, err)
	}
}
