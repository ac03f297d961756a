package deadman

import (
	"context"
	"maps"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/linux/boottime"
	"holdfast/internal/platform/linux/threads"
	"holdfast/internal/sessions/kill"
)

const (
	// killLimit bounds one attempt to kill the held containers; killPause is the time
	// until the next.
	killLimit = 5 * time.Second
	killPause = time.Second
	// searchPause is the time between two searches for expected containers, as long
	// as the searches take at most a tenth of a CPU. After searchBusy a search every
	// searchLater is enough: an engine that has not started a container by then
	// hangs.
	searchPause = 10 * time.Millisecond
	searchBusy  = time.Minute
	searchLater = time.Second
)

// firing is the state of a deadman's work after its deadline.
type firing struct {
	passed   bool             // the deadline has passed, and all containers of that moment are expired
	since    boottime.Instant // when a deadline passed last
	deadline boottime.Instant // that deadline
	under    bool             // a kill is in progress
	nextKill boottime.Instant
	nextLook boottime.Instant
	searched bool // a search found nothing alive

	reports chan holdfast.KillReport
	current *Fired            // of the kill in progress
	names   map[string]string // of the containers that it kills; requests may change the held ones meanwhile
	closing []*kill.Target    // released while the kill used them
	found   map[string]bool   // expected containers that were killed
	fired   *Fired            // not reported yet
}

// take returns the report: once, or, while a kill goes on, what is done so far and
// later all of it.
func (f *firing) take() *Fired {
	fired := f.fired
	if !f.under && !f.passed {
		f.fired = nil
	}
	return fired
}

// begin starts the work for a new deadline.
func (f *firing) begin(deadline boottime.Instant) {
	f.passed, f.deadline, f.since = true, deadline, boottime.Now()
	f.nextKill, f.nextLook, f.searched, f.found = 0, 0, false, nil
}

// release closes a target when no kill uses it.
func (f *firing) release(t *kill.Target) {
	if f.under {
		f.closing = append(f.closing, t)
	} else {
		t.Close()
	}
}

// nextAct is when act is due; 0 means at the deadline's timer.
func (s *server) nextAct() boottime.Instant {
	var next boottime.Instant
	if !s.firing.under && len(s.due()) > 0 {
		next = max(s.firing.nextKill, 1)
	}
	if len(s.sought()) > 0 {
		next = earlier(next, max(s.firing.nextLook, 1))
	}
	return next
}

// act marks all containers as expired if the deadline has passed, and kills the expired
// ones. A newer deadline does not spare them: it may belong to a new lease, and other
// nodes may own the sessions of the old one.
func (s *server) act() {
	s.collect()
	f := &s.firing
	if s.overdue() {
		// Otherwise poll(2) would return at once, again and again.
		_ = s.timer.Set(0)
	}
	if s.overdue() && !f.passed {
		f.begin(s.deadline)
		s.markAll()
		if !s.idle() {
			s.log.Error("deadman: the agent has not renewed this node's lease; killing its containers",
				"held", len(s.held), "expected", len(s.expected), "late", -s.deadline.Until())
		}
	}
	if due := s.due(); len(due) > 0 && !f.under && f.nextKill.Until() <= 0 {
		s.kill(due)
	}
	if sought := s.sought(); len(sought) > 0 && f.nextLook.Until() <= 0 {
		s.look(sought)
	}
}

// record is the report for this deadline.
func (s *server) record() *Fired {
	if s.firing.fired == nil || s.firing.fired.Deadline != s.firing.deadline {
		s.firing.fired = &Fired{Deadline: s.firing.deadline, At: boottime.Now()}
	}
	return s.firing.fired
}

// kill kills the containers that are held and expired.
func (s *server) kill(due []*held) {
	s.firing.current = s.record()
	targets := make([]*kill.Target, 0, len(due))
	s.firing.names = make(map[string]string, len(due))
	for _, h := range due {
		s.firing.names[h.target.ID] = h.Name
		// First, before anything that can fail or block.
		_ = h.target.Init().Signal(unix.SIGKILL)
		targets = append(targets, h.target)
	}
	s.firing.under = true
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), killLimit)
		defer cancel()
		k := kill.Killer{Log: s.log}
		report := k.Kill(ctx, targets)
		s.firing.reports <- report
		s.wakeUp()
	}()
	runtime.Gosched() // GOMAXPROCS is 1: the kill begins before poll(2) blocks
}

// collect records the result of a kill that has ended.
func (s *server) collect() {
	f := &s.firing
	select {
	case report := <-f.reports:
		f.under = false
		fired := f.current
		for _, id := range report.Dead {
			fired.Dead++
			fired.name(f.names[id])
			if h := s.held[id]; h != nil && h.target.Init().Exited() {
				f.closing = append(f.closing, h.target)
				delete(s.held, id)
			}
		}
		fired.Left = len(report.Left)
		f.nextKill = boottime.Now().Add(killPause)
		s.log.Error("deadman: killed", "dead", len(report.Dead), "left", len(report.Left), "took", report.Took)
		// The kernel takes milliseconds to remove the containers' mounts.
		closing := f.closing
		f.closing = nil
		go func() {
			for _, t := range closing {
				t.Close()
			}
		}()
	default:
	}
}

// look kills all processes in the control groups of the containers sought: names by
// id.
func (s *server) look(sought map[string]string) {
	f := &s.firing
	used := threads.ProcessTime()
	groups, err := s.opener.Search(slices.Collect(maps.Keys(sought)))
	if err != nil {
		s.log.Error("deadman: looking for expected containers", "err", err)
	}
	f.searched = err == nil
	for id, gs := range groups {
		for _, g := range gs {
			if empty, err := g.Empty(); err == nil && empty {
				continue
			}
			f.searched = false
			err := g.Kill()
			if f.found[id] {
				continue
			}
			if f.found == nil {
				f.found = make(map[string]bool)
			}
			f.found[id] = true
			fired := s.record()
			fired.Found++
			fired.name(sought[id])
			s.log.Error("deadman: killed an expected container", "container", sought[id], "id", id, "group", g.Dir(), "err", err)
		}
	}
	f.nextLook = boottime.Now().Add(searchAfter(-f.since.Until(), threads.ProcessTime()-used))
}

// searchAfter is the time until the next search, a time after the deadline. The cost of a
// search is CPU time: on a busy host a search waits for the CPU, and containers that start
// meanwhile have to be found soon.
func searchAfter(sinceDeadline, cost time.Duration) time.Duration {
	pause := searchPause
	if sinceDeadline > searchBusy {
		pause = searchLater
	}
	return max(pause, 10*cost)
}
