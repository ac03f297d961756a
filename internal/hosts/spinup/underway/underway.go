// Package underway lists the spin-ups in progress on this host: boots of sessions,
// `holdfast pull` and `run`, containers of other clients between create and start, and
// the announcements of outside tools. It has only state and a clock. The garbage
// collector, which waits for an idle host, uses
//
//	List.UnderWay() (n int, since time.Time)
//	List.Changed() <-chan struct{}
//
// as
//
//	for {
//		changed := list.Changed() // before the check, so that no change is missed
//		if n, _ := list.UnderWay(); n == 0 {
//			break
//		}
//		select {
//		case <-changed:
//		case <-ctx.Done():
//		}
//	}
//
// Each entry expires, so that a crashed tool does not count for ever. The expiry
// clock also runs while the host sleeps.
//
// The announcements of outside tools are Leases, which all processes on the host see.
package underway

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"sort"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/platform/linux/boottime"
	"holdfast/internal/platform/tasks"
)

// Bounds of a List.
const (
	// MaxEntries is the maximum number of spin-ups in progress.
	MaxEntries = 4096
	// MaxLife is the longest time that a spin-up counts without being announced
	// again.
	MaxLife = time.Hour
	// MaxName is the longest name in bytes.
	MaxName = 128
)

// ErrFull means that MaxEntries spin-ups are in progress.
var ErrFull = fmt.Errorf("%d spin-ups are under way: %w", MaxEntries, holdfast.ErrBusy)

// Entry is one spin-up in progress.
type Entry struct {
	ID   string `json:"id"`
	Kind string `json:"kind"` // a spinup.Kind, or "outside"
	Name string `json:"name"`
	// Begun and Until are by the host's wall clock, for display. Changes of the
	// wall clock do not affect the actual end.
	Begun time.Time `json:"begun"`
	Until time.Time `json:"until"` // when it stops counting
}

// Outside is the Kind of spin-ups announced by outside tools.
const Outside = "outside"

// entry is an Entry with its times on the boot clock.
type entry struct {
	Entry
	until  boottime.Instant
	leased bool // it is one of the Leases
}

// newEntry returns a spin-up that begins now.
func newEntry(kind, name string, life time.Duration, at boottime.Instant) entry {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails (crypto/rand)
	now := time.Now().UTC().Round(0)
	return entry{until: at.Add(life), Entry: Entry{
		ID: hex.EncodeToString(id[:]), Kind: kind, Name: name, Begun: now, Until: now.Add(life),
	}}
}

// check checks the arguments of a Begin.
func check(kind, name string, life time.Duration) error {
	switch {
	case life <= 0 || life > MaxLife:
		return fmt.Errorf("a spin-up cannot be under way for %v: it must be greater than 0 and at most %v", life, MaxLife)
	case kind == "" || len(kind) > maxKind:
		return fmt.Errorf("a spin-up that is under way needs a kind, of at most %d bytes", maxKind)
	case len(name) > MaxName:
		return fmt.Errorf("the name of a spin-up has %d bytes, at most %d are allowed", len(name), MaxName)
	}
	return nil
}

// List lists the spin-ups in progress. Its methods may be called from any
// goroutine.
type List struct {
	clock  func() boottime.Instant
	leases *Leases // nil: none

	mu      sync.Mutex
	entries map[string]entry
	turned  time.Time     // start of the current busy or idle period
	changed chan struct{} // closed at the next change
}

// New returns a List without entries. clock is boottime.Now, except in tests.
func New(clock func() boottime.Instant) *List {
	return &List{clock: clock, entries: map[string]entry{}, turned: time.Now(), changed: make(chan struct{})}
}

// Include adds leases, and makes announcements (Outside) leases. It must be
// called before anything else.
func (l *List) Include(leases *Leases) { l.leases = leases }

// Begin counts a spin-up from now on, for at most life (over 0, up to MaxLife),
// until End is called with its ID. It returns ErrFull; other errors are about the
// arguments.
func (l *List) Begin(kind, name string, life time.Duration) (Entry, error) {
	if err := check(kind, name, life); err != nil {
		return Entry{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if kind == Outside && l.leases != nil {
		// If this fails, the spin-up counts at least for this process.
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

// End removes a spin-up. It returns holdfast.ErrNotFound if the spin-up has
// already ended.
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

// UnderWay returns the number of spin-ups in progress. If n is positive, since is
// when the current busy period began; if n is 0, since is when the idle period
// began.
func (l *List) UnderWay() (n int, since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lookLocked()
	return len(l.entries), l.turned
}

// Active returns the spin-ups in progress, oldest first.
func (l *List) Active() []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lookLocked()
	out := make([]Entry, 0, len(l.entries))
	for _, e := range l.entries {
		out = append(out, e.Entry)
	}
	sort.Slice(out, func(i, j int) bool {
		a, b := &out[i], &out[j]
		return cmp.Or(a.Begun.Compare(b.Begun), cmp.Compare(a.ID, b.ID)) < 0
	})
	return out
}

// Counts returns the number of spin-ups in progress by kind, without kinds that
// have none.
func (l *List) Counts() map[string]int {
	out := map[string]int{}
	for _, e := range l.Active() {
		out[e.Kind]++
	}
	return out
}

// Changed returns a channel that is closed when the next spin-up begins or ends.
// For expired spin-ups and leases of other processes, Run closes it at most a
// second late; UnderWay is always current.
func (l *List) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// Run ends expired spin-ups and polls the leases, until ctx is done. Without Run
// the counts are still correct, but Changed is not signalled.
func (l *List) Run(ctx context.Context) error {
	// A ticker is enough: Go's timers stop while the host sleeps, and so do all
	// waiting goroutines.
	return tasks.EveryTick(ctx, time.Second, func() { l.UnderWay() })
}

// lookLocked drops expired entries, and updates the leases.
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

// leasedNow returns the leases that count. If they cannot be read, known is
// false: known leases then count until they expire.
func (l *List) leasedNow() (leased map[string]entry, known bool) {
	if l.leases == nil {
		return nil, true
	}
	leased, err := l.leases.active()
	return leased, err == nil
}

// changeLocked signals a change; turned means that a busy or idle period begins.
func (l *List) changeLocked(turned bool) {
	if turned {
		l.turned = time.Now()
	}
	close(l.changed)
	l.changed = make(chan struct{})
}
