package protect

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"holdfast/internal/platform/linux/proc"
)

// Installed is an address that a standing keeper is prepared for.
type Installed struct {
	Address
	// Backend is the one for who asks for Auto; Auto is the best that works.
	Backend Name `json:"backend"`
}

// covers reports whether a hold of a is prepared.
func (i Installed) covers(a Address) bool {
	return i.Port == a.Port && (!i.Addr.IsValid() || i.Addr == a.Addr)
}

// Standing is how a standing keeper is doing.
type Standing struct {
	Pid   int        `json:"pid"`
	Since time.Time  `json:"since"`
	Ports []Prepared `json:"ports"`
}

// Prepared is one of its addresses.
type Prepared struct {
	Installed
	// Listening is whether a server listens there now.
	Listening bool `json:"listening"`
	// Holds is how many have ended since the keeper stands. Those of other
	// keepers, as of a protect with more ports than are installed, are not
	// among them.
	Holds int `json:"holds"`
	// Connections waited in them; Longest is the longest that one did.
	Connections int           `json:"connections"`
	Longest     time.Duration `json:"longest_ns"`
	// Last is the backend of the last hold.
	Last Name `json:"last_backend,omitempty"`
	// Now is the hold that stands.
	Now *Current `json:"now,omitempty"`
}

// Current is a hold that stands.
type Current struct {
	// Pid and Command are the protect's; 0 where it is in another pid
	// namespace.
	Pid     int       `json:"pid"`
	Command string    `json:"command,omitempty"`
	Backend Name      `json:"backend"`
	Since   time.Time `json:"since"`
	Stats   Stats     `json:"stats"`
}

// errLeaving means that a standing keeper takes no new hold, since it is about to
// end.
var errLeaving = errors.New("the standing keeper is ending")

// ledger is what a standing keeper is prepared for and what it has held. A nil one
// is that of a keeper of one protect, which keeps no account. Its methods may be
// called from any goroutine.
type ledger struct {
	since time.Time

	mu      sync.Mutex
	ports   []Prepared
	current map[*standingHold]bool
	holds   int           // that stand, or are about to
	leaving chan struct{} // closed when no other is to begin
	idle    chan struct{} // closed when leaving and nothing is held
}

// standingHold is a hold of a standing keeper.
type standingHold struct {
	pid       int
	since     time.Time
	addresses []Address
	backend   Name
	held      Held
}

func newLedger() *ledger {
	return &ledger{since: time.Now(), current: make(map[*standingHold]bool), leaving: make(chan struct{}), idle: make(chan struct{})}
}

// enter begins what leave ends. It is false where nothing may begin any more.
func (l *ledger) enter() bool {
	if l == nil {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left() {
		return false
	}
	l.holds++
	return true
}

// left reports whether leaving is closed.
func (l *ledger) left() bool {
	select {
	case <-l.leaving:
		return true
	default:
		return false
	}
}

func (l *ledger) leave() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holds--
	l.settle()
}

// quit lets nothing begin any more.
func (l *ledger) quit() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.left() {
		close(l.leaving)
		l.settle()
	}
}

// settle tells when all is over. The lock is held.
func (l *ledger) settle() {
	if l.left() && l.holds == 0 {
		close(l.idle)
	}
}

// prefer makes a hold with Auto one with the backend that was installed for all of
// its addresses.
func (l *ledger) prefer(s *Spec) {
	if l == nil || s.Backend != "" && s.Backend != Auto {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Backend = preferred(l.installed(), s.Addresses)
}

// preferred is the backend that was installed for the addresses.
func preferred(ports []Installed, as []Address) Name {
	var found Name
	for _, a := range as {
		i := slices.IndexFunc(ports, func(i Installed) bool { return i.covers(a) })
		if i < 0 || found != "" && found != ports[i].Backend {
			return Auto
		}
		found = ports[i].Backend
	}
	return found
}

// covered reports whether all addresses are prepared for.
func covered(ports []Installed, as []Address) bool {
	return !slices.ContainsFunc(as, func(a Address) bool {
		return !slices.ContainsFunc(ports, func(i Installed) bool { return i.covers(a) })
	})
}

// began notes a hold that stands; the function notes its end.
func (l *ledger) began(pid int, s Spec, b Began, h Held) (ended func()) {
	if l == nil {
		return func() {}
	}
	c := &standingHold{pid, time.Now(), s.Addresses, b.Backend, h}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current[c] = true
	return func() { l.ended(c) }
}

func (l *ledger) ended(c *standingHold) {
	stats := c.held.Stats()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.current, c)
	for i := range l.ports {
		p := &l.ports[i]
		if slices.ContainsFunc(c.addresses, p.covers) {
			p.Holds++
			p.Connections += stats.Held
			p.Longest, p.Last = max(p.Longest, stats.Longest), c.backend
		}
	}
}

// install prepares for these addresses and no others. What was counted stays.
func (l *ledger) install(ports []Installed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var next []Prepared
	for _, p := range ports {
		fresh := Prepared{Installed: p}
		if i := slices.IndexFunc(l.ports, func(o Prepared) bool { return o.Address == p.Address }); i >= 0 {
			fresh = l.ports[i]
			fresh.Backend = p.Backend
		}
		next = append(next, fresh)
	}
	l.ports = next
}

// list is what is installed.
func (l *ledger) list() []Installed {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.installed()
}

// installed is list under the lock.
func (l *ledger) installed() []Installed {
	ports := make([]Installed, 0, len(l.ports))
	for _, p := range l.ports {
		ports = append(ports, p.Installed)
	}
	return ports
}

// report is how it is going, but for who listens.
func (l *ledger) report() []Prepared {
	l.mu.Lock()
	defer l.mu.Unlock()
	ports := slices.Clone(l.ports)
	for c := range l.current {
		now := Current{Pid: c.pid, Command: commandOf(c.pid), Backend: c.backend, Since: c.since, Stats: c.held.Stats()}
		for i := range ports {
			if slices.ContainsFunc(c.addresses, ports[i].covers) {
				ports[i].Now = &now
			}
		}
	}
	return ports
}

// maxCommand bounds a command line that is shown, in bytes.
const maxCommand = 200

// commandOf is a process's command line, "" where there is none.
func commandOf(pid int) string {
	if pid <= 0 {
		return ""
	}
	argv, err := proc.Host.Cmdline(pid)
	if err != nil {
		return ""
	}
	c := strings.Join(argv, " ")
	return strings.ToValidUTF8(c[:min(len(c), maxCommand)], "")
}
