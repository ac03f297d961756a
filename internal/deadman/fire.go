package deadman

import (
	"context"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/kill"
	"holdfast/internal/linux/boottime"
)

const (
	// killLimit bounds one try to see what is held dead, killPause is the time
	// until the next.
	killLimit = 5 * time.Second
	killPause = time.Second
	// searchPause is the time between two looks for expected containers, as
	// long as one takes at most a tenth of that; after searchBusy a look every
	// searchLater is enough: an engine that has not started a container by
	// then hangs.
	searchPause = 50 * time.Millisecond
	searchBusy  = time.Minute
	searchLater = time.Second
)

// firing is what a deadman does once its deadline has passed.
type firing struct {
	since    boottime.Instant // when it began; 0: the deadline is ahead
	under    bool             // a kill is under way
	nextKill boottime.Instant
	nextLook boottime.Instant
	searched bool // there was a look that found nothing alive

	reports chan holdfast.KillReport
	current *Fired          // of the kill under way
	closing []*kill.Target  // let go while the kill used them
	found   map[string]bool // expected ones that were killed
	fired   *Fired          // not told yet
}

// take returns what there is to tell: once, or while it goes on what there is
// so far and later all of it.
func (f *firing) take() *Fired {
	fired := f.fired
	if !f.under && f.since == 0 {
		f.fired = nil
	}
	return fired
}

// again forgets what was tried for the deadline before.
func (f *firing) again() {
	f.since, f.nextKill, f.nextLook, f.searched, f.found = 0, 0, 0, false, nil
}

// letGo closes a target, once no kill uses it.
func (f *firing) letGo(t *kill.Target) {
	if f.under {
		f.closing = append(f.closing, t)
	} else {
		t.Close()
	}
}

// nextAct is when act has something to do, 0 for when the timer says so.
func (s *server) nextAct() boottime.Instant {
	if !s.overdue() {
		return 0
	}
	var next boottime.Instant
	if len(s.held) > 0 && !s.firing.under {
		next = max(s.firing.nextKill, 1)
	}
	if len(s.expected) > 0 {
		next = sooner(next, max(s.firing.nextLook, 1))
	}
	return next
}

// act kills what there is, if the deadline has passed.
func (s *server) act() {
	s.collect()
	if !s.overdue() {
		return
	}
	// Else poll(2) would return at once again and again.
	_ = s.timer.Set(0)
	f := &s.firing
	if f.since == 0 {
		f.since = boottime.Now()
		if !s.idle() {
			s.log.Error("deadman: the agent has not renewed this node's lease; killing its containers",
				"held", len(s.held), "expected", len(s.expected), "late", -s.deadline.Until())
		}
	}
	if len(s.held) > 0 && !f.under && f.nextKill.Until() <= 0 {
		s.kill()
	}
	if len(s.expected) > 0 && f.nextLook.Until() <= 0 {
		s.look()
	}
}

// record is what to tell of this deadline.
func (s *server) record() *Fired {
	if s.firing.fired == nil || s.firing.fired.Deadline != s.deadline {
		s.firing.fired = &Fired{Deadline: s.deadline, At: boottime.Now()}
	}
	return s.firing.fired
}

// kill makes everything that is held dead.
func (s *server) kill() {
	s.firing.current = s.record()
	targets := make([]*kill.Target, 0, len(s.held))
	for _, h := range s.held {
		// Before anything that can fail or take time.
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
		s.poke()
	}()
	runtime.Gosched() // there is one processor: let it begin before poll(2) blocks that
}

// collect takes note of a kill that has ended.
func (s *server) collect() {
	f := &s.firing
	select {
	case report := <-f.reports:
		f.under = false
		fired := f.current
		for _, id := range report.Dead {
			fired.Dead++
			if h := s.held[id]; h != nil && h.target.Init().Exited() {
				fired.name(h.Name)
				f.closing = append(f.closing, h.target)
				delete(s.held, id)
			}
		}
		fired.Left = len(report.Left)
		f.nextKill = boottime.Now().Add(killPause)
		s.log.Error("deadman: killed", "dead", len(report.Dead), "left", len(report.Left), "took", report.Took)
		// The kernel takes its time over the containers' mounts.
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

// look kills everything in the control groups of expected containers.
func (s *server) look() {
	f := &s.firing
	begun := boottime.Now()
	groups, err := s.opener.Search(s.expectedIDs())
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
			fired.name(s.expected[id])
			s.log.Error("deadman: killed an expected container", "container", s.expected[id], "id", id, "group", g.Dir(), "err", err)
		}
	}
	pause := searchPause
	if boottime.Now() > f.since.Add(searchBusy) {
		pause = searchLater
	}
	cost := -begun.Until()
	f.nextLook = boottime.Now().Add(max(pause, 10*cost))
}
