package deadman

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/pidfd"
	"holdfast/test/poll"
)

// However the agent fails, its containers die at the deadline and not before.
func TestAgentIsOutOfAction(t *testing.T) {
	for name, befall := range map[string]func(*testing.T, *agent){
		"killed": func(_ *testing.T, a *agent) { a.kill() },
		"stopped": func(t *testing.T, a *agent) {
			if err := a.cmd.Process.Signal(unix.SIGSTOP); err != nil {
				t.Fatal(err)
			}
		},
		"out of descriptors": func(_ *testing.T, a *agent) { a.must(order{Starve: true}) },
		"silent":             func(*testing.T, *agent) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b, late := newAgent(t, runDir(t)), newBox(t, newID()), newID()
			a.must(order{Extend: soon(time.Hour)})
			a.must(order{Expect: b.ID})
			a.must(order{Hold: b.container})
			a.must(order{Expect: late})
			deadline := soon(2 * time.Second)
			a.must(order{Extend: deadline})
			_ = a.do(order{Expect: late}) // the reply shows that the deadman has the deadline, even if it has passed
			befall(t, a)
			b.diedNotBefore(t, deadline)
			// The engine starts a container that was announced before.
			newBox(t, late).diedNotBefore(t, deadline)
		})
	}
}

// If the agent comes back in time, or another one attaches, nothing is killed.
func TestAttachAgain(t *testing.T) {
	dir, b := runDir(t), newBox(t, newID())
	first := newAgent(t, dir)
	old := soon(3 * time.Second)
	first.must(order{Extend: old})
	first.must(order{Hold: b.container})
	first.kill()
	c := newClient(t, dir)
	if c.Pid() != first.deadman {
		t.Errorf("deadman %d instead of %d", c.Pid(), first.deadman)
	}
	c.Extend(soon(time.Hour))
	hold(t, c, b)
	waitUntil(old)
	time.Sleep(200 * time.Millisecond)
	if !b.alive() {
		t.Fatal("it was killed at the deadline that was moved")
	}
	deadline := soon(0)
	c.Extend(deadline)
	b.diedNotBefore(t, deadline)
}

// A forgotten container is not killed, and a deadman without containers stands down.
func TestForgottenContainerLives(t *testing.T) {
	dir := runDir(t)
	c, b, other := newClient(t, dir), newBox(t, newID()), newBox(t, newID())
	c.Extend(soon(time.Hour))
	hold(t, c, b)
	hold(t, c, other)
	if err := c.StandDown(); err == nil {
		t.Error("it stood down with a container that lives")
	}
	c.Forget(b.ID)
	deadline := soon(0)
	c.Extend(deadline)
	other.diedNotBefore(t, deadline)
	if !b.alive() {
		t.Error("a container that was forgotten is dead")
	}
	process, err := pidfd.Open(c.Pid())
	if err != nil {
		t.Fatal(err)
	}
	defer process.Close()
	poll.Until(t, "the deadman stands down", func() bool { return c.StandDown() == nil })
	poll.Until(t, "it has ended", process.Exited)
	if err := c.Expect(newID()); err == nil {
		t.Error("a container may start although no deadman stands by")
	}
	if names, err := sockets(dir); err != nil || len(names) != 0 {
		t.Errorf("sockets left: %v, %v", names, err)
	}
}
