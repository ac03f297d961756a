package gc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast/internal/gc"
	"holdfast/internal/lab"
)

// disk is a file system of the test's own.
func disk(t *testing.T, o lab.DiskOptions) string {
	t.Helper()
	d, err := lab.NewDisk(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Remove(); err != nil {
			t.Error(err)
		}
	})
	return d.Dir
}

// fillUp takes all blocks of a file system, those that are root's, too.
func fillUp(t *testing.T, dir string) {
	t.Helper()
	for _, block := range []int{1 << 20, 4096, 1} {
		f, err := os.CreateTemp(dir, "ballast-")
		if errors.Is(err, unix.ENOSPC) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, err = f.Write(make([]byte, block))
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil && !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
}

// TestAFullDisk has the engine's data and what the collector keeps on a disk on
// which not a byte is free, from the first cycle on: all goes that may, and what
// could not be done is said.
func TestAFullDisk(t *testing.T) {
	dir := disk(t, lab.DiskOptions{FS: "ext4", Size: 512 << 20})
	h := newHostWith(t, lab.Options{Dir: dir})
	h.data = filepath.Join(dir, "holdfast")
	h.image("kept:1", 10)
	kept := h.create("kept:1", "")
	h.network("leaked")
	ended := h.create("kept:1", "")
	h.start(ended)
	if err := h.engine.Kill(t.Context(), ended); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		h.image(fmt.Sprintf("x:%d", i), 500)
	}
	collect := func(deleted int, rules ...gc.Rule) gc.Cycle {
		t.Helper()
		fillUp(t, dir)
		c := everything()
		c.Rules = rules
		cy, err := h.collector(c, nil).Collect(t.Context(), gc.ByHand, nil)
		if err != nil || cy.Error != "" || len(cy.Skipped) > 0 || len(cy.Deleted) != deleted {
			t.Errorf("%+v, %v", cy, err)
		}
		said := strings.Join(cy.Notices, "\n")
		if !strings.Contains(said, "files are not linked away before a removal: make the trash") || !strings.Contains(said, "no space left") {
			t.Errorf("it said %q", said)
		}
		return cy
	}
	// The engine cannot even write that a name has gone.
	collect(1, gc.Rule{Kinds: []gc.Kind{gc.Images}, Match: []string{"x:0"}})
	cy := collect(5, gc.Rule{Kinds: []gc.Kind{gc.Stopped}}, gc.Rule{Kinds: []gc.Kind{gc.Networks}}, gc.Rule{Kinds: []gc.Kind{gc.Images}})
	h.expect("kept:1")
	h.start(kept)
	h.readable(kept)
	// Where something has gone there is room for links.
	linked := 0
	for _, o := range cy.Deleted {
		linked += o.Linked
	}
	if linked < 1000 {
		t.Errorf("%d files were linked away: %+v", linked, cy.Deleted)
	}
	if cycles, err := gc.NewStore(h.data, slog.Default()).Cycles(0); err != nil || len(cycles) == 0 || len(cycles[0].Deleted) != 5 || !cycles[0].Ended {
		t.Errorf("%+v, %v", cycles, err)
	}
}

// TestHistoryOnAFullDisk has only what the collector keeps on a disk that stays
// full: what was done is known all the same, the trouble is said once, and all is
// written when there is room.
func TestHistoryOnAFullDisk(t *testing.T) {
	h := newHost(t)
	dir := disk(t, lab.DiskOptions{FS: "ext4", Size: 16 << 20})
	h.data = filepath.Join(dir, "holdfast")
	var said bytes.Buffer
	log := slog.New(slog.NewTextHandler(io.MultiWriter(&said, h.Output()), nil))
	store := gc.NewStore(h.data, log)
	policy := everything()
	col := gc.New(policy, gc.Deps{Engine: h.engine, Store: store, LockDir: t.TempDir(), Log: log})
	fillUp(t, dir)
	const cycles = 3
	for i := range cycles {
		h.image(fmt.Sprintf("x:%d", i), 200)
		cy, err := col.Collect(t.Context(), gc.ByHand, nil)
		if err != nil || len(cy.Deleted) == 0 || !strings.Contains(strings.Join(cy.Notices, "\n"), "not in the history yet") {
			t.Errorf("%+v, %v", cy, err)
		}
	}
	h.expect()
	if list, err := col.History(0); err != nil || len(list) != cycles || !list[0].Ended || !list[0].Begun.After(list[1].Begun) {
		t.Errorf("%+v, %v", list, err)
	}
	if list, err := gc.NewStore(h.data, log).Cycles(0); err != nil || len(list) != 0 {
		t.Errorf("written: %+v, %v", list, err)
	}
	if n := strings.Count(said.String(), "level=ERROR"); n != 1 {
		t.Errorf("%d errors were logged", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- col.Run(ctx) }()
	ballast, err := filepath.Glob(filepath.Join(dir, "ballast-*"))
	if err != nil || len(ballast) == 0 {
		t.Fatal(ballast, err)
	}
	for _, path := range ballast {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	h.eventually("the history is written", func() bool {
		list, err := gc.NewStore(h.data, log).Cycles(0)
		return err == nil && len(list) == cycles
	})
	cancel()
	if err := <-ran; err != nil {
		t.Error(err)
	}
}
