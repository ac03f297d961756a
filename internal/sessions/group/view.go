package group

import (
	"context"
	"maps"
	"time"

	"holdfast"
)

// maxAge is the age up to which a copy of the records is used. A keeper relies on it; see
// Groups.settle.
const maxAge = time.Second

// readLimit bounds a read of the records for a request. The copy is used if the store does
// not answer.
const readLimit = time.Second

// view is a copy of the records. It is not modified.
type view struct {
	groups map[string]seenGroup
	at     time.Time // the records are not older
}

type seenGroup struct {
	holdfast.Group
	at time.Time // the record was written or read after this
}

// view returns a copy of the records that is at most age old, or the last one if the store
// does not answer. It is nil before the first answer.
func (g *Groups) view(ctx context.Context, age time.Duration) *view {
	if v := g.seen.Load(); v != nil && time.Since(v.at) < age {
		return v
	}
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	if _, err := g.reads.Get(ctx); err != nil {
		g.deps.Log.Debug("the records of groups cannot be read", "err", err)
	}
	return g.seen.Load()
}

// readAll reads the records and merges them into the copy.
func (g *Groups) readAll(ctx context.Context) (*view, error) {
	next := &view{groups: map[string]seenGroup{}, at: time.Now()}
	notes, err := g.deps.Store.ListNotes(ctx, recordNotes)
	if err != nil {
		return nil, err
	}
	for _, n := range notes {
		if one, err := decode(n); err == nil { // Groups logs it
			next.groups[one.Name] = seenGroup{one, next.at}
		}
	}
	return g.merge(next), nil
}

// learn enters a record that this node has just written.
func (g *Groups) learn(one holdfast.Group) {
	g.merge(&view{groups: map[string]seenGroup{one.Name: {one, time.Now()}}})
}

// merge replaces the copy by one that has the younger record of each group. A read that
// began before a write of this node does not hide the write. Groups are never deleted from
// the copy: they end with the configuration.
func (g *Groups) merge(next *view) *view {
	for {
		old := g.seen.Load()
		all := &view{groups: maps.Clone(next.groups), at: next.at}
		if old != nil {
			for name, one := range old.groups {
				if one.at.After(all.groups[name].at) {
					all.groups[name] = one
				}
			}
			if old.at.After(all.at) {
				all.at = old.at
			}
		}
		if g.seen.CompareAndSwap(old, all) {
			return all
		}
	}
}
