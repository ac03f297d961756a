package cli

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"holdfast"
	"holdfast/internal/hosts/spinup"
)

// batch is records that are to be kept, and what became of each.
type batch struct {
	records []spinup.Record
	why     []error // each is not kept; nil: it is
	left    []int   // those to be tried
}

func newBatch(records []spinup.Record) *batch {
	b := &batch{records: records, why: make([]error, len(records))}
	for i := range records {
		b.left = append(b.left, i)
	}
	return b
}

// each does something with the records of the given indexes, some at once, and
// notes how that went.
func (b *batch) each(of []int, do func(spinup.Record) error) {
	var g errgroup.Group
	g.SetLimit(recordAtOnce)
	for _, i := range of {
		g.Go(func() error {
			b.why[i] = do(b.records[i])
			return nil
		})
	}
	_ = g.Wait() // what went wrong is noted
}

// which are those of the ones to be tried that an error is true of.
func (b *batch) which(is func(error) bool) []int {
	var out []int
	for _, i := range b.left {
		if is(b.why[i]) {
			out = append(out, i)
		}
	}
	return out
}

// again leaves those to be tried that may be kept a moment later, and reports
// whether there are any.
func (b *batch) again() bool {
	b.left = b.which(func(err error) bool {
		// The agent has not opened its store yet, or somebody else has it open.
		return errors.Is(err, holdfast.ErrBusy) || errors.Is(err, spinup.ErrInUse)
	})
	return len(b.left) > 0
}

// lost is about the records that are not kept, nil where all are.
func (b *batch) lost() error {
	first := slices.IndexFunc(b.why, func(err error) bool { return err != nil })
	if first < 0 {
		return nil
	}
	n := 0
	for _, err := range b.why {
		if err != nil {
			n++
		}
	}
	err := fmt.Errorf("recording the spin-up of %s: %w", b.records[first].Image, b.why[first])
	if n > 1 {
		err = fmt.Errorf("%w (%d of %d are lost)", err, n, len(b.records))
	}
	return err
}
