package dashboard

import (
	"context"
	"slices"
	"sync"
	"time"

	"holdfast"
)

const (
	endsShown = 10               // on a session's page
	endsFresh = 10 * time.Second // all nodes are asked
	endsKept  = 32               // sessions whose ends are kept for a moment
)

// ends keeps what the fleet has answered about the ends of sessions, for a moment: an open
// page asks every few seconds.
type ends struct {
	ask func(ctx context.Context, key holdfast.SessionKey, limit int) (holdfast.EndingReport, error)

	mu   sync.Mutex
	kept map[holdfast.SessionKey]*cached[holdfast.EndingReport]
}

func (e *ends) of(key holdfast.SessionKey) *cached[holdfast.EndingReport] {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.kept[key]
	if c == nil {
		if len(e.kept) >= endsKept || e.kept == nil {
			e.kept = map[holdfast.SessionKey]*cached[holdfast.EndingReport]{}
		}
		c = newCached(endsFresh, func(ctx context.Context) (holdfast.EndingReport, error) { return e.ask(ctx, key, endsShown) })
		e.kept[key] = c
	}
	return c
}

// endings returns how the last epochs of a session ended, the newest first.
func (d *Dashboard) endings(ctx context.Context, key holdfast.SessionKey, admin bool) ([]holdfast.Ending, error) {
	rep, err := d.ends.of(key).get(ctx)
	all := slices.Clone(rep.Endings) // the cached ones are shared
	for i := range all {
		if !admin {
			all[i].Log = ""
		}
	}
	return all, err
}
