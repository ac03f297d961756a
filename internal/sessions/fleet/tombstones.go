package fleet

import (
	"time"

	"holdfast"
)

// What is remembered of records that went away.
const (
	remembered = time.Minute // for who places the session anew
	maxGraves  = 1 << 16     // most of a fleet of 100,000 sessions within that minute
)

// graves remembers records that went away: what they were, and, until the watch
// has told that they went, that they must not come back. It is guarded by
// Directory.mu.
type graves struct {
	byKey map[holdfast.SessionKey]grave
	order []burial // oldest first
}

type grave struct {
	record
	at   time.Time
	sure bool // the watch has told it: nothing older can come any more
}

type burial struct {
	key   holdfast.SessionKey
	epoch holdfast.Epoch
}

func newGraves() graves { return graves{byKey: map[holdfast.SessionKey]grave{}} }

// of is the record that went away, unless that is too long ago.
func (g *graves) of(key holdfast.SessionKey, now time.Time) (grave, bool) {
	one, ok := g.byKey[key]
	return one, ok && now.Sub(one.at) < remembered
}

// has reports whether the epoch is known to be over.
func (g *graves) has(key holdfast.SessionKey, epoch holdfast.Epoch) bool {
	one, ok := g.byKey[key]
	return ok && epoch <= one.epoch
}

func (g *graves) add(key holdfast.SessionKey, r record, sure bool, now time.Time) {
	g.byKey[key] = grave{r, now, sure}
	g.order = append(g.order, burial{key, r.epoch})
	g.clean(now)
}

// settle notes that the watch has told of the key's end at the revision.
func (g *graves) settle(key holdfast.SessionKey, at holdfast.Revision) {
	if one, ok := g.byKey[key]; ok && one.revision < at {
		one.sure = true
		g.byKey[key] = one
	}
}

// forget is called when the key is owned again.
func (g *graves) forget(key holdfast.SessionKey) { delete(g.byKey, key) }

// clean drops what is old, but for what could still come back, and over the
// bound whatever is oldest.
func (g *graves) clean(now time.Time) {
	for n := len(g.order); n > 0; n-- {
		b := g.order[0]
		one, ok := g.byKey[b.key]
		current := ok && one.epoch == b.epoch
		if current && now.Sub(one.at) < remembered && len(g.order) <= maxGraves {
			return
		}
		g.order = g.order[1:]
		switch {
		case !current:
		case one.sure || len(g.order) >= maxGraves:
			delete(g.byKey, b.key)
		default:
			g.order = append(g.order, b)
		}
	}
}
