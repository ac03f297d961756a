package cli

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"holdfast"
	"holdfast/internal/hosts/spinup"
)

// batch is a list of records to keep, with the result of each.
type batch struct {
	records []spinup.Record
	why     []error // of each record that is not kept; nil: it is kept
	left    []int   // indexes of the records to try
}

func newBatch(records []spinup.Record) *batch {
	b := &batch{records: records, why: make([]error, len(records))}
	for i := range records {
		b.left = append(b.left, i)
	}
	return b
}

// each calls do with the records of the given indexes, some concurrently, and stores
// the results.
func (b *batch) each(of []int, do func(spinup.Record) error) {
	var g errgroup.Group
	g.SetLimit(recordAtOnce)
	for _, i := range of {
		g.Go(func() error {
			b.why[i] = do(b.records[i])
			return nil
		})
	}
	_ = g.Wait() // the errors are in why
}

// which returns the indexes of the records to try with an error for which is is true.
func (b *batch) which(is func(error) bool) []int {
	var out []int
	for _, i := range b.left {
		if is(b.why[i]) {
			out = append(out, i)
		}
	}
	return out
}

// again drops from left the records that are kept or cannot be kept, and reports
// whether any remain: those may be kept a moment later.
func (b *batch) again() bool {
	b.left = b.which(func(err error) bool {
		// The agent has not opened its store yet, or another process has it open.
		return errors.Is(err, holdfast.ErrBusy) || errors.Is(err, spinup.ErrInUse)
	})
	return len(b.left) > 0
}

// lost returns an error about the records that are not kept, nil if all are kept.
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
