package apitest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/spinup"
	"holdfast/internal/spinup/underway"
)

// SetSpinups gives the backend records, in any order.
func (b *Backend) SetSpinups(records []spinup.Record) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spinups = slices.SortedFunc(slices.Values(records), func(x, y spinup.Record) int { return strings.Compare(y.ID, x.ID) })
}

// Spinups implements api.Spinups.
func (b *Backend) Spinups(_ context.Context, f spinup.Filter) ([]spinup.Record, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []spinup.Record
	for _, r := range b.spinups {
		if f.Takes(r) && (f.Limit <= 0 || len(out) < f.Limit) {
			out = append(out, r)
		}
	}
	return out, b.fault
}

// Spinup implements api.Spinups.
func (b *Backend) Spinup(_ context.Context, id string) (spinup.Record, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.spinups {
		if b.fault == nil && strings.HasPrefix(r.ID, id) {
			return r, nil
		}
	}
	if b.fault != nil {
		return spinup.Record{}, b.fault
	}
	return spinup.Record{}, fmt.Errorf("spin-up %s: %w", id, holdfast.ErrNotFound)
}

// SpinupReport implements api.Spinups.
func (b *Backend) SpinupReport(ctx context.Context, q spinup.Question) (spinup.Report, error) {
	records, err := b.Spinups(ctx, q.Filter)
	if err != nil {
		return spinup.Report{}, err
	}
	return spinup.NewReport(records, q, b.SlowRules())
}

// SlowRules implements api.Spinups.
func (b *Backend) SlowRules() spinup.Rules { return spinup.DefaultRules() }

// AddSpinup implements api.Spinups.
func (b *Backend) AddSpinup(_ context.Context, r spinup.Record) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fault == nil {
		b.spinups = append([]spinup.Record{r}, b.spinups...)
	}
	return b.fault
}

// SpinupsUnderWay implements api.Spinups.
func (b *Backend) SpinupsUnderWay(context.Context) ([]underway.Entry, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.underWay), b.fault
}

// BeginSpinup implements api.Spinups; ids count from 1.
func (b *Backend) BeginSpinup(_ context.Context, kind, name string, life time.Duration) (underway.Entry, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fault != nil {
		return underway.Entry{}, b.fault
	}
	b.begun++
	e := underway.Entry{ID: fmt.Sprintf("%016d", b.begun), Kind: kind, Name: name, Begun: Began, Until: Began.Add(life)}
	b.underWay = append(b.underWay, e)
	return e, nil
}

// EndSpinup implements api.Spinups.
func (b *Backend) EndSpinup(_ context.Context, id string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fault != nil {
		return b.fault
	}
	i := slices.IndexFunc(b.underWay, func(e underway.Entry) bool { return e.ID == id })
	if i < 0 {
		return fmt.Errorf("spin-up %q is not under way: %w", id, holdfast.ErrNotFound)
	}
	b.underWay = slices.Delete(b.underWay, i, i+1)
	return nil
}
