package cli

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"holdfast"
	"holdfast/internal/hosts/spinup"
)

// attempt is a record to keep, and the error of the last try.
type attempt struct {
	record spinup.Record
	err    error // nil: the record is kept
}

// batch is a list of records to keep.
type batch []*attempt

func newBatch(records []spinup.Record) batch {
	b := make(batch, len(records))
	for i, r := range records {
		b[i] = &attempt{record: r}
	}
	return b
}

// each calls keep with each record, some concurrently, and stores the results.
func (b batch) each(keep func(spinup.Record) error) {
	var g errgroup.Group
	g.SetLimit(recordAtOnce)
	for _, one := range b {
		g.Go(func() error {
			one.err = keep(one.record)
			return nil
		})
	}
	_ = g.Wait() // each attempt has its error
}

// with returns the records with an error for which is is true.
func (b batch) with(is func(error) bool) batch {
	return slices.DeleteFunc(slices.Clone(b), func(one *attempt) bool { return !is(one.err) })
}

// maybeLater reports whether a record with this error may be kept a moment later: the
// agent has not opened its store yet, or another process has it open.
func maybeLater(err error) bool {
	return errors.Is(err, holdfast.ErrBusy) || errors.Is(err, spinup.ErrInUse)
}

// lost returns an error about the records that are not kept, nil if all are kept.
func (b batch) lost() error {
	lost := b.with(func(err error) bool { return err != nil })
	if len(lost) == 0 {
		return nil
	}
	err := fmt.Errorf("recording the spin-up of %s: %w", lost[0].record.Image, lost[0].err)
	if len(lost) > 1 {
		err = fmt.Errorf("%w (%d of %d are lost)", err, len(lost), len(b))
	}
	return err
}
