package deadman

import (
	"errors"
	"fmt"
	"sort"

	"golang.org/x/sys/unix"

	"holdfast/internal/sessions/kill"
)

// held is a container that the deadman holds open.
type held struct {
	container
	target *kill.Target
	late   bool // expired before it was held: it is also searched for
}

// list returns a batch of all containers, in the order of their ids.
func (s *server) list(from int) []container {
	all := make([]container, 0, len(s.held)+len(s.expected))
	for _, h := range s.held {
		all = append(all, h.container)
	}
	for _, c := range s.expected {
		all = append(all, c)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].ID < all[j].ID })
	from = min(from, len(all))
	return all[from:min(from+batch, len(all))]
}

// expect records a container that is about to start, or that is moved from another
// deadman.
func (s *server) expect(c container, moved bool) error {
	switch {
	case s.deadline == 0 || s.overdue() && !moved:
		return ErrOverdue
	case !moved && (s.expected[c.ID].Expired || s.held[c.ID] != nil && s.held[c.ID].Expired):
		return fmt.Errorf("it was there when a deadline had passed: %w", ErrOverdue)
	case s.held[c.ID] != nil:
		return nil
	case s.full():
		return errFull
	}
	c.Expired = c.Expired || s.overdue()
	s.expected[c.ID] = c
	s.firing.searched = false
	return nil
}

var errFull = fmt.Errorf("%d containers are too many", maxContainers)

func (s *server) full() bool { return len(s.expected)+len(s.held) >= maxContainers }

// hold opens a running container. A container that cannot be opened stays or becomes
// expected, so that everything in its control groups is killed. A dead init is no
// error.
func (s *server) hold(c container) error {
	before, known := s.expected[c.ID]
	h := s.held[c.ID]
	switch {
	case s.deadline == 0:
		return ErrOverdue
	case h != nil && h.Pid == c.Pid && h.Start == c.Start:
		return nil
	case h == nil && !known && s.full():
		return errFull
	}
	c.Expired = c.Expired || before.Expired || h != nil && h.Expired || s.overdue()
	t, err := s.open(c)
	if err != nil {
		s.expected[c.ID] = container{ID: c.ID, Name: c.Name, Expired: c.Expired}
		s.firing.searched = false
		if errors.Is(err, kill.ErrGone) {
			return nil
		}
		return err
	}
	s.forget([]string{c.ID})
	s.held[c.ID] = &held{c, t, c.Expired}
	if c.Expired {
		_ = t.Init().Signal(unix.SIGKILL) // it may be dead; a kill in progress does not include it
		s.firing.nextKill, s.firing.nextLook = 0, 0
	}
	return nil
}

// open opens the process that the agent means, by pid and start time.
func (s *server) open(c container) (*kill.Target, error) {
	t, err := s.opener.Open(c.ID, c.Name, c.Pid)
	if errors.Is(err, kill.ErrProtected) { // the pid may have been that of an ancestor that has ended
		if err = s.newOpener(); err == nil {
			t, err = s.opener.Open(c.ID, c.Name, c.Pid)
		}
	}
	if err != nil {
		return nil, err
	}
	if t.Start() != c.Start {
		t.Close()
		return nil, fmt.Errorf("container %.12s: pid %d belongs to another process now: %w", c.ID, c.Pid, kill.ErrGone)
	}
	return t, nil
}

// forget removes containers.
func (s *server) forget(ids []string) {
	for _, id := range ids {
		if h := s.held[id]; h != nil {
			s.firing.release(h.target)
			delete(s.held, id)
		}
		delete(s.expected, id)
	}
}

// prune removes containers that are dead. Their agent may have died before it could
// forget them.
func (s *server) prune() {
	for id, h := range s.held {
		if !h.target.Alive() {
			s.forget([]string{id})
		}
	}
}

// markAll marks all containers to be killed, because the deadline has passed.
func (s *server) markAll() {
	for _, h := range s.held {
		h.Expired = true
	}
	for id, c := range s.expected {
		c.Expired = true
		s.expected[id] = c
	}
}

// expired reports whether any container is expired.
func (s *server) expired() bool { return len(s.due()) > 0 || len(s.sought()) > 0 }

// due returns the containers that are held and expired.
func (s *server) due() []*held {
	var all []*held
	for _, h := range s.held {
		if h.Expired {
			all = append(all, h)
		}
	}
	return all
}

// sought returns the names, by id, of the containers to search for: those expected
// and expired, and those that a kill in progress may not include.
func (s *server) sought() map[string]string {
	all := make(map[string]string)
	for id, c := range s.expected {
		if c.Expired {
			all[id] = c.Name
		}
	}
	for id, h := range s.held {
		if h.late {
			all[id] = h.Name
		}
	}
	return all
}
