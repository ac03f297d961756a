package fleet

import (
	"time"

	"holdfast"
)

// Bounds of the memory of removed records.
const (
	tombstoneTTL  = time.Minute // needed by the node that places the session again
	maxTombstones = 1 << 16     // most of a fleet of 100,000 sessions within that minute
)

// tombstones remembers removed records: their content and, until the watch has
// reported the removal, that they must not reappear. Directory.mu guards it.
type tombstones struct {
	byKey map[holdfast.SessionKey]tombstone
	order []tombstoneKey // oldest first
}

type tombstone struct {
	record
	at        time.Time
	confirmed bool // the watch has reported the removal: no older event can arrive
}

type tombstoneKey struct {
	key   holdfast.SessionKey
	epoch holdfast.Epoch
}

func newTombstones() tombstones { return tombstones{byKey: map[holdfast.SessionKey]tombstone{}} }

// get returns the removed record, unless it is older than tombstoneTTL.
func (t *tombstones) get(key holdfast.SessionKey, now time.Time) (tombstone, bool) {
	one, ok := t.byKey[key]
	return one, ok && now.Sub(one.at) < tombstoneTTL
}

// covers reports whether the epoch is known to have ended.
func (t *tombstones) covers(key holdfast.SessionKey, epoch holdfast.Epoch) bool {
	one, ok := t.byKey[key]
	return ok && epoch <= one.epoch
}

func (t *tombstones) add(key holdfast.SessionKey, r record, sure bool, now time.Time) {
	t.byKey[key] = tombstone{r, now, sure}
	t.order = append(t.order, tombstoneKey{key, r.epoch})
	t.evict(now)
}

// confirm records that the watch has reported the removal of the key at the revision.
func (t *tombstones) confirm(key holdfast.SessionKey, at holdfast.Revision) {
	if one, ok := t.byKey[key]; ok && one.revision < at {
		one.confirmed = true
		t.byKey[key] = one
	}
}

// remove is called when the key has an owner again.
func (t *tombstones) remove(key holdfast.SessionKey) { delete(t.byKey, key) }

// evict drops tombstones that are older than tombstoneTTL and confirmed. Over
// maxTombstones it drops the oldest ones.
func (t *tombstones) evict(now time.Time) {
	for n := len(t.order); n > 0; n-- {
		b := t.order[0]
		one, ok := t.byKey[b.key]
		current := ok && one.epoch == b.epoch
		if current && now.Sub(one.at) < tombstoneTTL && len(t.order) <= maxTombstones {
			return
		}
		t.order = t.order[1:]
		switch {
		case !current:
		case one.confirmed || len(t.order) >= maxTombstones:
			delete(t.byKey, b.key)
		default:
			t.order = append(t.order, b)
		}
	}
}
