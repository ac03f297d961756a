package commands

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"holdfast"
)

// started is a command in a table.
func started(t *testing.T, all *table, key string) *command {
	t.Helper()
	c := newCommand(Request{Key: holdfast.SessionKey(key), Command: []string{"true"}}, time.Now())
	if err := all.add(c); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *command) endAt(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.info.EndedAt = at
}

// A full table drops the command that ended first, and refuses one more if all run.
func TestTableIsBounded(t *testing.T) {
	var all table
	now := time.Now()
	var last []*command
	for range maxOfSession {
		last = append(last, started(t, &all, "alice"))
	}
	if err := all.add(newCommand(Request{Key: "alice"}, now)); !errors.Is(err, holdfast.ErrBusy) {
		t.Errorf("one more than all that run: %v", err)
	}
	last[5].endAt(now)
	last[9].endAt(now.Add(-time.Second))
	started(t, &all, "alice")
	if _, err := all.find("alice", last[9].info.ID); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("the command that ended first: %v", err)
	}
	if _, err := all.find("alice", last[5].info.ID); err != nil {
		t.Error(err)
	}
	for i := range maxOfNode - maxOfSession {
		started(t, &all, fmt.Sprintf("s%d", i))
	}
	if n := all.totals(); n.Kept != maxOfNode || n.Running != maxOfNode-1 {
		t.Errorf("%+v", n)
	}
	started(t, &all, "bob") // in place of the last one that has ended
	if err := all.add(newCommand(Request{Key: "carol"}, now)); !errors.Is(err, holdfast.ErrBusy) {
		t.Errorf("one more on the node: %v", err)
	}
	if len(all.list("alice")) != maxOfSession-1 {
		t.Errorf("%d of alice", len(all.list("alice")))
	}
}

// An ended command is forgotten in time, a running one is not. A table closes only without
// a running command.
func TestTableExpires(t *testing.T) {
	var all table
	now := time.Now()
	old, young, running := started(t, &all, "alice"), started(t, &all, "alice"), started(t, &all, "alice")
	old.endAt(now.Add(-time.Hour))
	young.endAt(now)
	all.expire(now.Add(-time.Minute))
	if got := all.list("alice"); len(got) != 2 || got[0].ID != young.info.ID || got[1].ID != running.info.ID {
		t.Errorf("%+v", got)
	}
	if all.close() {
		t.Error("it closes although a command runs")
	}
	running.endAt(now)
	if !all.close() {
		t.Error("it does not close")
	}
	if err := all.add(newCommand(Request{Key: "bob"}, now)); !errors.Is(err, errClosing) {
		t.Errorf("a closed table: %v", err)
	}
}
