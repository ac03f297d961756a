// Package underway knows which spin-ups are under way on this host: sessions'
// boots, `holdfast pull` and `run`, other people's containers between create and
// start, and what outside tools announce. It is state and a clock; nothing of it
// does work. Who waits for quiet (the garbage collector) uses
//
//	List.UnderWay() (n int, since time.Time)
//	List.Changed() <-chan struct{}
//
// as
//
//	for {
//		changed := list.Changed() // before the look, so that nothing is missed
//		if n, _ := list.UnderWay(); n == 0 {
//			break
//		}
//		select {
//		case <-changed:
//		case <-ctx.Done():
//		}
//	}
//
// Everything in it ends by itself at its time, so that a tool that crashed does
// not count for ever. That clock goes on while the host sleeps.
//
// What outside tools announce are Leases, which all processes on the host see.
package underway

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/platform/linux/boottime"
)

// Bounds of a List.
const (
	// MaxEntries is how many spin-ups are counted at a time.
	MaxEntries = 4096
	// MaxLife is the longest that one counts without being begun anew.
	MaxLife = time.Hour
	// MaxName is the longest name in bytes.
	MaxName = 128
)

// ErrFull says that MaxEntries are under way.
var ErrFull = fmt.Errorf("%d spin-ups are under way: %w", MaxEntries, holdfast.ErrBusy)

// Entry is one spin-up that is under way.
type Entry struct {
	ID   string `json:"id"`
	Kind string `json:"kind"` // a spinup.Kind, or "outside"
	Name string `json:"name"`
	// Begun and Until are by the host's wall clock, for people: they move
	// with it, the end itself does not.
	Begun time.Time `json:"begun"`
	Until time.Time `json:"until"` // it counts no longer
}

// Outside is the Kind of what an outside tool announced.
const Outside = "outside"

// entry is an Entry with the clock that counts.
type entry struct {
	Entry
	until  boottime.Instant
	leased bool // it is one of the Leases
}

// newEntry is a spin-up that begins now.
func newEntry(kind, name string, life time.Duration, at boottime.Instant) entry {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails (crypto/rand)
	now := time.Now().UTC().Round(0)
	return entry{until: at.Add(life), Entry: Entry{
		ID: hex.EncodeToString(id[:]), Kind: kind, Name: name, Begun: now, Until: now.Add(life),
	}}
}

// check holds the arguments of a Begin to their bounds.
func check(kind, name string, life time.Duration) error {
	switch {
	case life <= 0 || life > MaxLife:
		return fmt.Errorf("a spin-up cannot be under way for %v: it has to be over 0 and at most %v", life, MaxLife)
	case kind == "" || len(kind) > maxKind:
		return fmt.Errorf("a spin-up that is under way needs a kind, of at most %d bytes", maxKind)
	case len(name) > MaxName:
		return fmt.Errorf("the name of a spin-up has %d bytes, at most %d will do", len(name), MaxName)
	}
	return nil
}

// List has the spin-ups that are under way. Its methods may be called from any
// goroutine.
type List struct {
	clock  func() boottime.Instant
	leases *Leases // nil: none

	mu      sync.Mutex
	entries map[string]entry
	turned  time.Time     // since when there are some, or none
	changed chan struct{} // closed at the next change
}

// New returns a List without entries. clock is boottime.Now, but in tests.
func New(clock func() boottime.Instant) *List {
	return &List{clock: clock, entries: map[string]entry{}, turned: time.Now(), changed: make(chan struct{})}
}

// Include makes leases count, too, and announcements (Outside) be leases. It is
// called before anything else.
func (l *List) Include(leases *Leases) { l.leases = leases }

// Begin counts a spin-up from now on, for life at most (over 0, up to MaxLife),
// until End is called with its ID. ErrFull; other errors are about the
// arguments.
func (l *List) Begin(kind, name string, life time.Duration) (Entry, error) {
	if err := check(kind, name, life); err != nil {
		return Entry{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if kind == Outside && l.leases != nil {
		// Where that cannot be, it counts for this process at least.
		if e, err := l.leases.Begin(kind, name, life); err == nil {
			l.lookLocked()
			return e, nil
		}
	}
	l.lookLocked()
	if len(l.entries) >= MaxEntries {
		return Entry{}, ErrFull
	}
	e := newEntry(kind, name, life, l.clock())
	l.entries[e.ID] = e
	l.changeLocked(len(l.entries) == 1)
	return e.Entry, nil
}

// End takes a spin-up off. holdfast.ErrNotFound where it has ended before.
func (l *List) End(id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lookLocked()
	e, ok := l.entries[id]
	if !ok {
		return fmt.Errorf("spin-up %q is not under way: %w", id, holdfast.ErrNotFound)
	}
	if e.leased {
		err := l.leases.End(id)
		l.lookLocked()
		return err
	}
	delete(l.entries, id)
	l.changeLocked(len(l.entries) == 0)
	return nil
}

// UnderWay says how many spin-ups are under way, and since when there has been
// at least one without a pause; of 0, since when there has been none.
func (l *List) UnderWay() (n int, since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lookLocked()
	return len(l.entries), l.turned
}

// Active are the spin-ups that are under way, the oldest first.
func (l *List) Active() []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lookLocked()
	out := make([]Entry, 0, len(l.entries))
	for _, e := range l.entries {
		out = append(out, e.Entry)
	}
	slices.SortFunc(out, func(a, b Entry) int { return cmp.Or(a.Begun.Compare(b.Begun), cmp.Compare(a.ID, b.ID)) })
	return out
}

// Counts are how many of each kind are under way; kinds of which there are none
// are not in it.
func (l *List) Counts() map[string]int {
	out := map[string]int{}
	for _, e := range l.Active() {
		out[e.Kind]++
	}
	return out
}

// Changed is closed when the next spin-up begins or ends. Of those that end by
// themselves, and of leases that others begin and end, Run tells, a second late at
// most; UnderWay knows at once.
func (l *List) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// Run lets spin-ups end whose time is up, and looks at the leases, until ctx is
// done. Without it all is counted as well, but nobody is told.
func (l *List) Run(ctx context.Context) error {
	// A ticker does: Go's timers stand still while the host sleeps, and so
	// does everybody who waits.
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			l.UnderWay()
		case <-ctx.Done():
			return nil
		}
	}
}

// lookLocked drops what is over, and takes in what became of the leases.
func (l *List) lookLocked() {
	now, was, changed := l.clock(), len(l.entries), false
	leased, known := l.leasedNow()
	for id, e := range l.entries {
		_, there := leased[id]
		if e.until <= now || known && e.leased && !there {
			delete(l.entries, id)
			changed = true
		}
	}
	for id, e := range leased {
		if _, there := l.entries[id]; !there && len(l.entries) < MaxEntries {
			l.entries[id] = e
			changed = true
		}
	}
	if changed {
		l.changeLocked((was == 0) != (len(l.entries) == 0))
	}
}

// leasedNow are the leases that count. Where they cannot be read, known is false:
// those that were there before count until their time is up.
func (l *List) leasedNow() (leased map[string]entry, known bool) {
	if l.leases == nil {
		return nil, true
	}
	leased, err := l.leases.active()
	return leased, err == nil
}

// changeLocked tells of a change; turned says that the first came or the last
// went.
func (l *List) changeLocked(turned bool) {
	if turned {
		l.turned = time.Now()
	}
	close(l.changed)
	l.changed = make(chan struct{})
}
