package deadman

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/sessions/kill"
	"holdfast/test/poll"
)

// Containers of the moment when a deadline passed die despite a newer deadline;
// containers that come later do not.
func TestExtensionSparesNoExpiredContainer(t *testing.T) {
	c, late, held := newClient(t, runDir(t)), newID(), newID()
	c.Extend(soon(500 * time.Millisecond))
	for _, id := range []string{late, held} {
		if err := c.Expect(id); err != nil {
			t.Fatal(err)
		}
	}
	passed := newBox(t, newID())
	hold(t, c, passed)
	<-passed.died // which shows that the deadline has passed
	c.Extend(soon(time.Hour))
	fresh := newBox(t, newID())
	if err := c.Expect(fresh.ID); err != nil {
		t.Fatal(err)
	}
	hold(t, c, fresh)
	if err := c.Expect(late); err == nil {
		t.Error("an expired container may be started")
	}
	<-newBox(t, late).died // it is searched for
	b := newBox(t, held)
	if target, err := kill.Open(b.ID, b.Name, b.Pid); err == nil { // the search may have killed it before
		_ = c.Hold(target) // or kills it now
		target.Close()
	}
	<-b.died
	// The next deadman knows that it is expired.
	old := c.Pid()
	if err := unix.Kill(old, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "another one stands by", func() bool { p := c.Pid(); return p != 0 && p != old })
	<-newBox(t, late).died
	// A forgotten container is no longer expired.
	c.Forget(late, held)
	again := newBox(t, late)
	hold(t, c, again)
	if !again.alive() || !fresh.alive() {
		t.Error("a container that came after the extension is dead")
	}
}

// A deadman that dies before it could report which containers have expired: all
// containers of that moment are expired.
func TestExpiredOutlivesTheDeadman(t *testing.T) {
	c, b, late := start(t, argv(), runDir(t), t.Output()), newBox(t, newID()), newID()
	deadline := soon(time.Second) // well under answerLimit
	c.Extend(deadline)
	hold(t, c, b)
	if err := c.Expect(late); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(c.Pid(), unix.SIGSTOP); err != nil { // it does nothing from now on
		t.Fatal(err)
	}
	waitUntil(deadline)
	if err := unix.Kill(c.Pid(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-c.link.conn.Ended()
	if !b.alive() {
		t.Fatal("the container was killed by the first deadman")
	}
	c.Extend(soon(time.Hour))
	fresh := newBox(t, newID())
	hold(t, c, fresh)
	b.diedNotBefore(t, deadline)
	newBox(t, late).diedNotBefore(t, deadline)
	// Only once: containers that come after the extension are not expired when the
	// next deadman dies.
	if err := unix.Kill(c.Pid(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-c.link.conn.Ended()
	if err := c.Expect(newID()); err != nil {
		t.Fatal(err)
	}
	if !fresh.alive() {
		t.Error("a container that came after the extension is dead")
	}
}

// A container that is announced after the deadline is killed at once.
func TestHoldAfterTheDeadline(t *testing.T) {
	c, b := newClient(t, runDir(t)), newBox(t, newID())
	c.Extend(soon(0))
	hold(t, c, b)
	<-b.died
}

// A container that was taken over, but could not be announced, is not forgotten with
// the unconfirmed ones.
func TestFailedHoldIsNotForgotten(t *testing.T) {
	dir, b := runDir(t), newBox(t, newID())
	first := newAgent(t, dir)
	first.must(order{Extend: soon(time.Hour)})
	first.must(order{Hold: b.container})
	first.kill()
	c := start(t, argv(), dir, t.Output())
	c.Extend(soon(time.Hour))
	target, err := kill.Open(b.ID, b.Name, b.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	c.argv = []string{"/nonexistent"} // no other deadman can be started for now
	if err := unix.Kill(c.Pid(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-c.link.conn.Ended()
	if err := c.Hold(target); err == nil {
		t.Fatal("a dead deadman has answered")
	}
	c.argv = argv()
	run(t, c)
	poll.Until(t, "another one stands by", func() bool { return c.Pid() != 0 })
	c.Forget(c.Unconfirmed()...)
	deadline := soon(100 * time.Millisecond)
	c.Extend(deadline)
	b.diedNotBefore(t, deadline)
}

// Searches take a tenth of a CPU at most. They are frequent for a minute.
func TestSearchAfter(t *testing.T) {
	for _, c := range []struct{ since, cost, want time.Duration }{
		{0, 0, searchPause},
		{searchBusy, searchPause / 20, searchPause},
		{time.Second, 5 * time.Millisecond, 50 * time.Millisecond},
		{searchBusy + 1, 0, searchLater},
		{time.Hour, time.Second, 10 * time.Second},
	} {
		if got := searchAfter(c.since, c.cost); got != c.want {
			t.Errorf("%v after the deadline, a search of %v: the next after %v, want %v", c.since, c.cost, got, c.want)
		}
	}
}
