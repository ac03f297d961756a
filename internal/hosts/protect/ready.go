package protect

import (
	"maps"
	"time"

	"holdfast/internal/platform/linux/sockdiag"
)

// Reason is why a hold ended.
type Reason string

// The reasons.
const (
	NewListens  Reason = "the new server listens"
	OldStayed   Reason = "the command is done, and the server kept its sockets"
	TimeUp      Reason = "the time is up"
	CommandKill Reason = "the command was killed"
	StarterGone Reason = "the process that asked for the hold is gone"
	AskedFor    Reason = "it was asked for"
	StaysDown   Reason = "the server failed and stays stopped"
	JobGone     Reason = "the state of the restart is not known any more"
)

// settled is how long nothing may change after the command's end before an
// intermediate state counts as final: an old server that was told to stop and
// has not stopped yet, or one of several listeners.
const settled = 250 * time.Millisecond

// readiness decides when to release. It is pure: the caller provides the
// sockets and the time.
type readiness struct {
	old map[uint64]bool // cookies of the listeners before the hold
	// places are the addresses that the old listeners had.
	places map[place]bool

	// elsewhere says that the server is in another network namespace. A listener
	// in this one, such as a proxy of the engine, then says nothing about the
	// server.
	elsewhere bool

	// overlap says that old UDP sockets stay for the flows that they know.
	overlap bool

	// gated says that no listener counts before the command has ended.
	gated bool

	exited  bool // the command has ended
	killed  bool // by a signal
	last    map[uint64]bool
	changed time.Time // when the listeners, or exited, last changed
}

// place is the address and device of a listener.
type place struct {
	addr   string
	device uint32
	udp    bool
}

func placeOf(l sockdiag.Listener) place { return place{l.Addr.String(), l.Device, l.UDP} }

func newReadiness(old []sockdiag.Listener, now time.Time) *readiness {
	r := &readiness{old: cookies(old), places: make(map[place]bool), last: cookies(old), changed: now}
	for _, l := range old {
		r.places[placeOf(l)] = true
	}
	return r
}

func cookies(ls []sockdiag.Listener) map[uint64]bool {
	m := make(map[uint64]bool, len(ls))
	for _, l := range ls {
		m[l.Cookie] = true
	}
	return m
}

// exit records that the command has ended.
func (r *readiness) exit(killed bool, now time.Time) {
	r.exited, r.killed, r.changed = true, killed, now
}

// judge returns the reason to release now, or "".
func (r *readiness) judge(ls []sockdiag.Listener, now time.Time) Reason {
	r.notice(ls, now)
	if r.killed {
		return CommandKill
	}
	if r.elsewhere || r.gated && !r.exited {
		return ""
	}
	fresh, missing := r.fresh(ls), maps.Clone(r.places)
	for _, l := range fresh {
		delete(missing, placeOf(l))
	}
	oldLeft, stay := 0, 0
	for _, l := range ls {
		switch {
		case !r.old[l.Cookie]:
		case l.UDP && r.overlap:
			stay++
		default:
			oldLeft++
		}
	}
	quiet := r.exited && now.Sub(r.changed) >= settled
	switch {
	case oldLeft == 0 && len(fresh) > 0 && len(missing) == 0:
		return NewListens
	case oldLeft == 0 && len(fresh) > 0 && quiet: // the new server listens on other addresses
		return NewListens
	case oldLeft+stay > 0 && quiet && len(fresh) == 0:
		return OldStayed
	}
	return ""
}

// fresh returns the listeners that began during the hold.
func (r *readiness) fresh(ls []sockdiag.Listener) (fresh []sockdiag.Listener) {
	for _, l := range ls {
		if !r.old[l.Cookie] {
			fresh = append(fresh, l)
		}
	}
	return fresh
}

// notice records a change of the listeners.
func (r *readiness) notice(ls []sockdiag.Listener, now time.Time) {
	if is := cookies(ls); !maps.Equal(is, r.last) {
		r.last, r.changed = is, now
	}
}
