package recorder

import (
	"context"
	"errors"
	"slices"
	"time"

	"holdfast/internal/hosts/doctor/ranking"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/tasks"
)

// loadRecent reads the records of the last day. Those that are in memory already are
// newer: they wait to be written.
func (r *Recorder) loadRecent(store *spinup.Store) error {
	list, err := store.List(spinup.Filter{Since: time.Now().Add(-figuresSince), Limit: figuresLimit})
	slices.Reverse(list)
	r.recentMu.Lock()
	defer r.recentMu.Unlock()
	r.recent = append(list, r.recent...)
	return err
}

// Containers returns the containers of the last day's records.
func (r *Recorder) Containers() (ids []string) {
	r.recentMu.Lock()
	defer r.recentMu.Unlock()
	for _, s := range r.recent {
		ids = append(ids, s.Container)
	}
	return ids
}

// remember adds a record to those of the last day.
func (r *Recorder) remember(s spinup.Record) {
	r.recentMu.Lock()
	defer r.recentMu.Unlock()
	r.recent = append(r.recent[max(0, len(r.recent)+1-figuresLimit):], s)
}

// Figures returns the figures of the last day's spin-ups at the time now.
func (r *Recorder) Figures(now time.Time) ranking.Spinups {
	r.recentMu.Lock()
	r.recent = slices.DeleteFunc(r.recent, func(s spinup.Record) bool { return now.Sub(s.Begun) > figuresSince })
	list := slices.Clone(r.recent)
	r.recentMu.Unlock()
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
	var waiting []spinup.Record
	err := tasks.Every(ctx, flushInterval, func() { waiting = r.flush(waiting) })
	r.lose(errors.New("another process has the store open"), r.flush(waiting)...)
	return err
}

// flush writes the waiting records and those in the queue. If another process has the
// store open, it returns them.
func (r *Recorder) flush(waiting []spinup.Record) []spinup.Record {
	for len(r.queue) > 0 && len(waiting) < queueLen {
		waiting = append(waiting, *<-r.queue)
	}
	if len(waiting) == 0 {
		return nil
	}
	err := r.with(func(store *spinup.Store) error { return store.Append(waiting...) })
	switch {
	case errors.Is(err, spinup.ErrInUse):
		r.log.Debug("records of spin-ups wait for the store", "count", len(waiting), "err", err)
		return waiting
	case err != nil:
		r.lose(err, waiting...)
	}
	return nil
}
