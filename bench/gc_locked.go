package bench

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"holdfast/internal/hosts/gc"
)

// Names of the rows.
const (
	rowPlainRemoval  = "engine: remove an image"
	rowLinkedRemoval = "engine: remove it, linked away before"
)

// lockedShare is the limit of the linked removal's time, as a share of the plain
// removal's.
const lockedShare = 0.15

// locked measures in pairs the engine's removal of an image, and of an equal image
// after its files were linked away. Score is the first ÷ the second, by their medians.
// Failed counts the pairs over lockedShare.
func (x *gcBench) locked(ctx context.Context) (Result, error) {
	machine, err := x.machine(ctx)
	if err != nil {
		return Result{}, err
	}
	var plain, linked []float64
	r := Result{Name: "gc, locked", Machine: machine}
	for i := range x.o.Pairs {
		fmt.Fprintf(x.o.Progress, "pair %d of %d: two images of %d files\n", i+1, x.o.Pairs, x.o.Files)
		took := [2]time.Duration{}
		for _, way := range []int{i % 2, 1 - i%2} { // the order alternates
			refs, err := x.fill(ctx, 1)
			if err != nil {
				return r, err
			}
			if took[way], err = x.removeOne(ctx, refs[0], way == 1); err != nil {
				return r, err
			}
		}
		plain, linked = append(plain, millis(took[0])), append(linked, millis(took[1]))
		if took[1].Seconds() > lockedShare*took[0].Seconds() {
			r.Failed++
			r.Notes = append(r.Notes, fmt.Sprintf("pair %d: %v plain, %v linked", i+1, took[0], took[1]))
		}
	}
	r.Rows = []Row{NewRow(rowPlainRemoval, "ms", plain), NewRow(rowLinkedRemoval, "ms", linked)}
	r.Score = r.Rows[0].P50 / r.Rows[1].P50
	r.Notes = append(r.Notes, fmt.Sprintf("the removal of linked images takes %.3f of the plain removal's time; the limit is %.2f", 1/r.Score, lockedShare))
	return r, nil
}

// removeOne removes one image with a collector of its own and returns the duration of
// the engine's removal.
func (x *gcBench) removeOne(ctx context.Context, ref string, link bool) (time.Duration, error) {
	c := gc.DefaultConfig()
	c.MinAge, c.Link = 0, link
	c.Rules = []gc.Rule{{Kinds: []gc.Kind{gc.Images}, Match: []string{ref}}}
	data := filepath.Join(x.dir, "locked")
	log := slog.New(slog.DiscardHandler)
	cy, err := gc.New(c, gc.Deps{Engine: x.engine, Store: gc.NewStore(data, log), LockDir: data, Log: log}).Collect(ctx, gc.ByRequest, nil)
	if err != nil {
		return 0, err
	}
	if len(cy.Deleted) != 1 || link != (cy.Deleted[0].Linked >= x.o.Files) {
		return 0, fmt.Errorf("image %s: %d deleted, notices %v", ref, len(cy.Deleted), cy.Notices)
	}
	return time.Duration(cy.Deleted[0].Locked), nil
}
