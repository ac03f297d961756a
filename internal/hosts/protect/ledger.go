package protect

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"holdfast/internal/platform/linux/proc"
)

// Installed is an address for which a standing keeper is prepared.
type Installed struct {
	Address
	// Backend is used for a request with Auto. Auto means the best that works.
	Backend Name `json:"backend"`
}

// covers reports whether i prepares a hold of a.
func (i Installed) covers(a Address) bool {
	return i.Port == a.Port && (!i.Addr.IsValid() || i.Addr == a.Addr)
}

// Standing is the state of a standing keeper.
type Standing struct {
	Pid   int        `json:"pid"`
	Since time.Time  `json:"since"`
	Ports []Prepared `json:"ports"`
}

// Prepared is the state of one address of a standing keeper.
type Prepared struct {
	Installed
	// Listening reports whether a server listens there now.
	Listening bool `json:"listening"`
	// Holds counts the holds that ended since the keeper started. It excludes the
	// holds of other keepers, for example for a protect with more ports than are
	// installed.
	Holds int `json:"holds"`
	// Connections counts the connections that waited in these holds; Longest is
	// the longest wait of one of them.
	Connections int           `json:"connections"`
	Longest     time.Duration `json:"longest_ns"`
	// Last is the backend of the last hold.
	Last Name `json:"last_backend,omitempty"`
	// Now is the current hold.
	Now *Current `json:"now,omitempty"`
}

// Current is a hold in progress.
type Current struct {
	// Pid and Command are those of the protect process; Pid is 0 if that is in
	// another pid namespace.
	Pid     int       `json:"pid"`
	Command string    `json:"command,omitempty"`
	Backend Name      `json:"backend"`
	Since   time.Time `json:"since"`
	Stats   Stats     `json:"stats"`
}

// errLeaving reports that a standing keeper is about to end and accepts no new
// hold.
var errLeaving = errors.New("the standing keeper is ending")

// ledger records what a keeper is prepared for and what it has held. Its methods
// may be called from any goroutine.
type ledger struct {
	since time.Time

	mu      sync.Mutex
	ports   []Prepared
	current map[*standingHold]bool
	leaving chan struct{}  // closed when no further hold may begin
	holds   sync.WaitGroup // in progress or starting
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
	return &ledger{since: time.Now(), current: make(map[*standingHold]bool), leaving: make(chan struct{})}
}

// enter registers the start of a hold; leave ends it. It returns false if no
// hold may begin any more.
func (l *ledger) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left() {
		return false
	}
	l.holds.Add(1)
	return true
}

func (l *ledger) leave() { l.holds.Done() }

// left reports whether leaving is closed.
func (l *ledger) left() bool {
	select {
	case <-l.leaving:
		return true
	default:
		return false
	}
}

// quit lets no further hold begin.
func (l *ledger) quit() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.left() {
		close(l.leaving)
	}
}

// prefer replaces the backend Auto with the backend that is installed for all
// addresses of s.
func (l *ledger) prefer(s *Spec) {
	if s.Backend != "" && s.Backend != Auto {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Backend = preferred(l.installed(), s.Addresses)
}

// preferred returns the backend that is installed for all of the addresses,
// else Auto.
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

// covered reports whether all addresses are prepared.
func covered(ports []Installed, as []Address) bool {
	return !slices.ContainsFunc(as, func(a Address) bool {
		return !slices.ContainsFunc(ports, func(i Installed) bool { return i.covers(a) })
	})
}

// began records a hold; the returned function records its end.
func (l *ledger) began(pid int, s Spec, b Began, h Held) (ended func()) {
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

// install sets the prepared addresses. The counters of addresses that remain are
// kept.
func (l *ledger) install(ports []Installed) error {
	if len(ports) > MaxInstalled {
		return fmt.Errorf("%d addresses are more than %d", len(ports), MaxInstalled)
	}
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
	return nil
}

// list returns what is installed.
func (l *ledger) list() []Installed {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.installed()
}

// installed is list for a caller that holds the lock.
func (l *ledger) installed() []Installed {
	ports := make([]Installed, 0, len(l.ports))
	for _, p := range l.ports {
		ports = append(ports, p.Installed)
	}
	return ports
}

// report returns the state of all addresses, except for Listening.
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

// maxCommand limits a displayed command line, in bytes.
const maxCommand = 200

// commandOf returns the command line of a process, "" if it cannot be read.
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
