package deadman

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"holdfast/internal/kill"
)

// held is a container in a deadman's hands.
type held struct {
	container
	target *kill.Target
}

// list is a batch of all containers, in the order of their ids.
func (s *server) list(from int) []container {
	all := make([]container, 0, len(s.held)+len(s.expected))
	for _, h := range s.held {
		all = append(all, h.container)
	}
	for id, name := range s.expected {
		all = append(all, container{ID: id, Name: name})
	}
	slices.SortFunc(all, func(a, b container) int { return strings.Compare(a.ID, b.ID) })
	from = min(from, len(all))
	return all[from:min(from+batch, len(all))]
}

// expect notes a container that is about to start, or that was noted elsewhere
// and moved here.
func (s *server) expect(c container, moved bool) error {
	switch {
	case s.deadline == 0 || s.overdue() && !moved:
		return ErrOverdue
	case s.held[c.ID] != nil:
		return nil
	case s.full():
		return errFull
	}
	s.expected[c.ID] = c.Name
	return nil
}

var errFull = fmt.Errorf("%d containers are too many", maxContainers)

func (s *server) full() bool { return len(s.expected)+len(s.held) >= maxContainers }

// hold takes hold of a running container. One that cannot be held stays
// expected, or becomes so: whatever is in its control groups dies by that. That
// its init is dead by now is no error.
func (s *server) hold(c container) error {
	_, known := s.expected[c.ID]
	switch h := s.held[c.ID]; {
	case s.deadline == 0:
		return ErrOverdue
	case h != nil && h.Pid == c.Pid && h.Start == c.Start:
		return nil
	case h == nil && !known && s.full():
		return errFull
	}
	t, err := s.open(c)
	if err != nil {
		s.expected[c.ID] = c.Name
		if errors.Is(err, kill.ErrGone) {
			return nil
		}
		return err
	}
	s.forget([]string{c.ID})
	s.held[c.ID] = &held{c, t}
	return nil
}

// open takes hold of the very process that the agent means.
func (s *server) open(c container) (*kill.Target, error) {
	t, err := s.opener.Open(c.ID, c.Name, c.Pid)
	if errors.Is(err, kill.ErrProtected) { // by what was above this process once?
		if err = s.newOpener(); err == nil {
			t, err = s.opener.Open(c.ID, c.Name, c.Pid)
		}
	}
	if err != nil {
		return nil, err
	}
	if t.Start() != c.Start {
		t.Close()
		return nil, fmt.Errorf("container %.12s: process %d is another one now: %w", c.ID, c.Pid, kill.ErrGone)
	}
	return t, nil
}

// forget lets go of containers.
func (s *server) forget(ids []string) {
	for _, id := range ids {
		if h := s.held[id]; h != nil {
			s.firing.letGo(h.target)
			delete(s.held, id)
		}
		delete(s.expected, id)
	}
}

// prune lets go of containers that are dead: their agent may have died before it
// could say so.
func (s *server) prune() {
	for id, h := range s.held {
		if !h.target.Alive() {
			s.forget([]string{id})
		}
	}
}

// expectedIDs are the ids that are expected.
func (s *server) expectedIDs() []string { return slices.Collect(maps.Keys(s.expected)) }
