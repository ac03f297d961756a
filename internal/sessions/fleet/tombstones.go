package fleet

import (
	"time"

	"holdfast"
)

// What is remembered of records that went away.
const (
	tombstoneTTL  = time.Minute // for who places the session anew
	maxTombstones = 1 << 16     // most of a fleet of 100,000 sessions within that minute
)

// tombstones remembers records that went away: what they were, and, until the watch
// has told that they went, that they must not come back. It is guarded by
// Directory.mu.
type tombstones struct {
	byKey map[holdfast.SessionKey]tombstone
	order []tombstoneKey // oldest first
}

type tombstone struct {
	record
	at        time.Time
	confirmed bool // the watch has told it: nothing older can come any more
}

type tombstoneKey struct {
	key   holdfast.SessionKey
	epoch holdfast.Epoch
}

func newTombstones() tombstones { return tombstones{byKey: map[holdfast.SessionKey]tombstone{}} }

// get is the record that went away, unless that is too long ago.
func (g *tombstones) get(key holdfast.SessionKey, now time.Time) (tombstone, bool) {
	one, ok := g.byKey[key]
	return one, ok && now.Sub(one.at) < tombstoneTTL
}

// covers reports whether the epoch is known to be over.
func (g *tombstones) covers(key holdfast.SessionKey, epoch holdfast.Epoch) bool {
	one, ok := g.byKey[key]
	return ok && epoch <= one.epoch
}

func (g *tombstones) add(key holdfast.SessionKey, r record, sure bool, now time.Time) {
	g.byKey[key] = tombstone{r, now, sure}
	g.order = append(g.order, tombstoneKey{key, r.epoch})
	g.evict(now)
}

// confirm notes that the watch has told of the key's end at the revision.
func (g *tombstones) confirm(key holdfast.SessionKey, at holdfast.Revision) {
	if one, ok := g.byKey[key]; ok && one.revision < at {
		one.confirmed = true
		g.byKey[key] = one
	}
}

// remove is called when the key is owned again.
func (g *tombstones) remove(key holdfast.SessionKey) { delete(g.byKey, key) }

// evict drops what is old, but for what could still come back, and over the
// bound whatever is oldest.
func (g *tombstones) evict(now time.Time) {
	for n := len(g.order); n > 0; n-- {
		b := g.order[0]
		one, ok := g.byKey[b.key]
		current := ok && one.epoch == b.epoch
		if current && now.Sub(one.at) < tombstoneTTL && len(g.order) <= maxTombstones {
			return
		}
		g.order = g.order[1:]
		switch {
		case !current:
		case one.confirmed || len(g.order) >= maxTombstones:
			delete(g.byKey, b.key)
		default:
			g.order = append(g.order, b)
		}
	}
}
