package commands

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"holdfast"
)

// table has the commands of a node. Its methods may be called from any goroutine.
type table struct {
	mu      sync.Mutex
	all     []*command // by their start
	closing bool       // no more are added
	started int64      // since the keeper's start
	lost    int64      // bytes of output, of commands that are no longer here
}

// add takes a command. For it, the table drops the command of the session that ended
// first, or of the node. holdfast.ErrBusy if all of them run; errClosing.
func (t *table) add(c *command) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closing {
		return errClosing
	}
	key := c.info.Key // set before, and never changed
	if t.count(func(o *command) bool { return o.info.Key == key }) >= maxOfSession && !t.dropEnded(key) {
		return fmt.Errorf("%d commands run in session %s: %w", maxOfSession, key, holdfast.ErrBusy)
	}
	if len(t.all) >= maxOfNode && !t.dropEnded("") {
		return fmt.Errorf("%d detached commands run on this node: %w", maxOfNode, holdfast.ErrBusy)
	}
	t.all = append(t.all, c)
	t.started++
	return nil
}

// dropEnded drops the first command that has ended, of a session or with "" of all.
func (t *table) dropEnded(key holdfast.SessionKey) bool {
	first := -1
	var at time.Time
	for i, c := range t.all {
		if s := c.show(); !s.Running() && (key == "" || s.Key == key) && (first < 0 || s.EndedAt.Before(at)) {
			first, at = i, s.EndedAt
		}
	}
	if first >= 0 {
		t.drop(t.all[first])
	}
	return first >= 0
}

func (t *table) count(of func(*command) bool) (n int) {
	for _, c := range t.all {
		if of(c) {
			n++
		}
	}
	return n
}

// drop forgets a command.
func (t *table) drop(c *command) {
	lost, _ := c.out.count()
	t.lost += lost
	t.all = slices.DeleteFunc(t.all, func(o *command) bool { return o == c })
}

// remove forgets a command that did not start.
func (t *table) remove(c *command) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(c)
	t.started--
}

// expire forgets the commands that ended before a time.
func (t *table) expire(before time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range slices.Clone(t.all) {
		if s := c.show(); !s.Running() && s.EndedAt.Before(before) {
			t.drop(c)
		}
	}
}

// list returns the commands of a session, in the order of their start.
func (t *table) list(key holdfast.SessionKey) []holdfast.Command {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := []holdfast.Command{}
	for _, c := range t.all {
		if c.info.Key == key {
			list = append(list, c.show())
		}
	}
	return list
}

// find returns a command of a session. holdfast.ErrNotFound.
func (t *table) find(key holdfast.SessionKey, id string) (*command, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.all {
		if c.info.Key == key && c.info.ID == id {
			return c, nil
		}
	}
	return nil, unknown(key, id)
}

func unknown(key holdfast.SessionKey, id string) error {
	return fmt.Errorf("command %s of session %s: %w", id, key, holdfast.ErrNotFound)
}

// totals are figures of a keeper.
type totals struct {
	Running int   `json:"running"`
	Kept    int   `json:"kept"` // running and ended
	Started int64 `json:"started"`
	Lost    int64 `json:"lost"` // bytes of output
}

func (t *table) totals() totals {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := totals{Kept: len(t.all), Started: t.started, Lost: t.lost}
	for _, c := range t.all {
		s := c.show()
		n.Lost += s.Lost
		if s.Running() {
			n.Running++
		}
	}
	return n
}

// close makes the table refuse commands, unless one runs.
func (t *table) close() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.count(func(c *command) bool { return c.show().Running() }) > 0 {
		return false
	}
	t.closing = true
	return true
}
