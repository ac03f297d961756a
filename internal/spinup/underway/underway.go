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
package underway

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/linux/boottime"
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
	until boottime.Instant
}

// List has the spin-ups that are under way. Its methods may be called from any
// goroutine.
type List struct {
	clock func() boottime.Instant

	mu      sync.Mutex
	entries map[string]entry
	turned  time.Time     // since when there are some, or none
	changed chan struct{} // closed at the next change
}

// New returns a List without entries. clock is boottime.Now, but in tests.
func New(clock func() boottime.Instant) *List {
	return &List{clock: clock, entries: map[string]entry{}, turned: time.Now(), changed: make(chan struct{})}
}

// Begin counts a spin-up from now on, for life at most (over 0, up to MaxLife),
// until End is called with its ID. ErrFull; other errors are about the
// arguments.
func (l *List) Begin(kind, name string, life time.Duration) (Entry, error) {
	switch {
	case life <= 0 || life > MaxLife:
		return Entry{}, fmt.Errorf("a spin-up cannot be under way for %v: it has to be over 0 and at most %v", life, MaxLife)
	case kind == "":
		return Entry{}, errors.New("a spin-up that is under way needs a kind")
	case len(name) > MaxName:
		return Entry{}, fmt.Errorf("the name of a spin-up has %d bytes, at most %d will do", len(name), MaxName)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expireLocked()
	if len(l.entries) >= MaxEntries {
		return Entry{}, ErrFull
	}
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails (crypto/rand)
	now := time.Now().UTC().Round(0)
	e := entry{until: l.clock().Add(life), Entry: Entry{
		ID: hex.EncodeToString(id[:]), Kind: kind, Name: name, Begun: now, Until: now.Add(life),
	}}
	l.entries[e.ID] = e
	l.changeLocked(len(l.entries) == 1)
	return e.Entry, nil
}

// End takes a spin-up off. holdfast.ErrNotFound where it has ended before.
func (l *List) End(id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expireLocked()
	if _, ok := l.entries[id]; !ok {
		return fmt.Errorf("spin-up %q is not under way: %w", id, holdfast.ErrNotFound)
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
	l.expireLocked()
	return len(l.entries), l.turned
}

// Active are the spin-ups that are under way, the oldest first.
func (l *List) Active() []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expireLocked()
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
// themselves Run tells, a second late at most.
func (l *List) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// Run lets spin-ups end whose time is up, until ctx is done. Without it they are
// not counted either, but nobody is told.
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

// expireLocked drops what is over.
func (l *List) expireLocked() {
	now, dropped := l.clock(), false
	for id, e := range l.entries {
		if e.until <= now {
			delete(l.entries, id)
			dropped = true
		}
	}
	if dropped {
		l.changeLocked(len(l.entries) == 0)
	}
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
