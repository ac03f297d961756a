package session

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
)

// A copy of a running virtual machine with its memory has the same boot, lock and lease as
// the original. Only the writes of the node's record differ: each agent reads the record
// before it writes it, and expects one of its own writes.

const (
	// writesKept is how many of its own writes an agent recognizes. A store may carry out a
	// write long after its sender has given up.
	writesKept = 64
	// foreignWrites in a time of foreignIntervals publish intervals prove that another agent
	// is alive. An earlier agent, or a restored store, causes one.
	foreignWrites    = 2
	foreignIntervals = 30
)

// ownWrites is what an agent knows of the writes of its node's record. One goroutine uses
// it.
type ownWrites struct {
	lease   store.LeaseID
	at      []time.Time // SeenAt of the last ones
	foreign []time.Time // when records of other writers were read
	other   time.Time   // SeenAt of the last of these
}

// under is called with the lease before each check and each write. Writes under an earlier lease prove nothing
// any more: a copy of this agent has lost that lease, too. The agent wrote the first record of a
// new lease when it got the lease.
func (w *ownWrites) under(h *lease) {
	if w.lease == h.ID {
		return
	}
	*w = ownWrites{lease: h.ID}
	if !h.first.IsZero() {
		w.add(h.first)
	}
}

// add is called before a write.
func (w *ownWrites) add(seenAt time.Time) {
	w.at = append(w.at, seenAt)
	w.at = w.at[max(0, len(w.at)-writesKept):]
}

// cloned reports whether the record, as read now, proves that another agent writes it.
func (w *ownWrites) cloned(n holdfast.Node, now time.Time, interval time.Duration) bool {
	own := func(at time.Time) bool { return at.Equal(n.SeenAt) }
	if len(w.at) == 0 || slices.ContainsFunc(w.at, own) || own(w.other) {
		return false
	}
	w.other = n.SeenAt
	w.foreign = slices.DeleteFunc(append(w.foreign, now), func(at time.Time) bool { return now.Sub(at) > foreignIntervals*interval })
	return len(w.foreign) >= foreignWrites
}

// suspects reports whether a record of another writer was read lately. The agent then writes
// its record at each interval: a second agent notices that, and does the same.
func (w *ownWrites) suspects(now time.Time, interval time.Duration) bool {
	return len(w.foreign) > 0 && now.Sub(w.foreign[len(w.foreign)-1]) <= foreignIntervals*interval
}

// cloned reports whether another agent with this lease writes the node's record. An error
// of the store proves nothing.
func (l *Lease) cloned(ctx context.Context, h *lease, w *ownWrites) bool {
	if l.cfg.Fence == 0 || h.gone.Load() {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, publishTime)
	defer cancel()
	n, err := l.store.Node(ctx, l.cfg.Node)
	if err != nil || n.Lease != int64(h.ID) || !w.cloned(n, time.Now(), l.cfg.Publish) {
		return false
	}
	l.duplicate.Store(true)
	return true
}

// Cloned reports whether another agent has this node's lease. The records under the lease are
// then that agent's. Any goroutine may call it.
func (l *Lease) Cloned() bool { return l.duplicate.Load() }

// endDuplicate kills everything on this node, because another agent has its id, and returns
// ErrDuplicateNode. The next agent of this host does not continue the lease.
func (l *Lease) endDuplicate(ctx context.Context, lost func(context.Context)) error {
	err := l.duplicateNode(ctx)
	l.log.Error("another agent has this node's id; killing the sessions of this one", "err", err)
	if failed := os.Remove(l.cfg.File); failed != nil && !errors.Is(failed, fs.ErrNotExist) {
		l.log.Error("the kept lease cannot be removed", "err", failed)
	}
	l.endAll(ctx, lost)
	return err
}
