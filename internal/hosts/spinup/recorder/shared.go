package recorder

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"holdfast/internal/hosts/doctor/ranking"
	"holdfast/internal/hosts/spinup"
)

// loadRecent reads the records of the last day.
func (r *Recorder) loadRecent() {
	err := r.with(func(store *spinup.Store) error {
		list, err := store.List(spinup.Filter{Since: time.Now().Add(-figuresSince), Limit: figuresLimit})
		r.mu.Lock()
		r.recent = list
		r.mu.Unlock()
		return err
	})
	if err != nil {
		r.log.Warn("the records of spin-ups cannot be read", "err", err)
	}
}

// Containers returns the containers of the last day's records. For a Recorder with
// Options.Shared.
func (r *Recorder) Containers() (ids []string) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, s := range r.recent {
		ids = append(ids, s.Container)
	}
	return ids
}

// remember adds a record to those of the last day.
func (r *Recorder) remember(s spinup.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recent = append([]spinup.Record{s}, r.recent[:min(len(r.recent), figuresLimit-1)]...)
}

// Figures returns the figures of the last day's spin-ups at the time now.
func (r *Recorder) Figures(now time.Time) ranking.Spinups {
	if r.o.Shared {
		r.mu.Lock()
		r.recent = slices.DeleteFunc(r.recent, func(s spinup.Record) bool { return now.Sub(s.Begun) > figuresSince })
		list := slices.Clone(r.recent)
		r.mu.Unlock()
		return figures(list, r.o.Slow)
	}
	var list []spinup.Record
	err := r.with(func(store *spinup.Store) (err error) {
		list, err = store.List(spinup.Filter{Since: now.Add(-figuresSince), Limit: figuresLimit})
		return err
	})
	if err != nil {
		r.log.Debug("the records of spin-ups cannot be read", "err", err)
	}
	return figures(list, r.o.Slow)
}

// The spin-ups that Figures covers.
const (
	figuresSince = 24 * time.Hour
	figuresLimit = 500
)

// figures covers the records that created and started a container without an error.
func figures(records []spinup.Record, slow spinup.Rules) ranking.Spinups {
	var f ranking.Spinups
	var took []float64
	for _, r := range records {
		create, ok1 := r.Times[spinup.Create]
		start, ok2 := r.Times[spinup.Start]
		if !ok1 || !ok2 || r.Outcome != spinup.OK {
			continue
		}
		took = append(took, (time.Duration(create) + time.Duration(start)).Seconds())
		if slices.ContainsFunc(slow.Slow(r), func(p spinup.Phase) bool { return p == spinup.Create || p == spinup.Start }) {
			f.Slow++
		}
	}
	if f.Count = len(took); f.Count == 0 {
		return f
	}
	slices.Sort(took)
	at := func(q float64) float64 { return took[min(int(q*float64(len(took))), len(took)-1)] }
	f.P50, f.P99 = at(.5), at(.99)
	return f
}

// runShared writes the records every ten seconds. In between the store is closed, so
// that `holdfast spinup` can read it.
func (r *Recorder) runShared(ctx context.Context) error {
	tick := time.NewTicker(flushInterval)
	defer tick.Stop()
	var waiting []spinup.Record
	for {
		select {
		case <-tick.C:
			waiting = r.flush(waiting)
		case <-ctx.Done():
			for _, s := range r.flush(waiting) {
				r.lose(s, errors.New("another process has the store open"))
			}
			return nil
		}
	}
}

// flush writes the waiting records and those in the queue. It returns them where
// another process has the store open.
func (r *Recorder) flush(waiting []spinup.Record) []spinup.Record {
	for len(r.queue) > 0 && len(waiting) < queueLen {
		waiting = append(waiting, <-r.queue)
	}
	if len(waiting) == 0 {
		return nil
	}
	err := r.with(func(store *spinup.Store) error {
		for _, s := range waiting {
			if err := store.Append(s); err != nil {
				return fmt.Errorf("of %d spin-ups: %w", len(waiting), err)
			}
		}
		return nil
	})
	switch {
	case errors.Is(err, spinup.ErrInUse):
		r.log.Debug("records of spin-ups wait for the store", "count", len(waiting), "err", err)
		return waiting
	case err != nil:
		for _, s := range waiting {
			r.lose(s, err)
		}
	}
	return nil
}
