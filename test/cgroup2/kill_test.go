package cgroup2

import (
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/sessions/kill"
	"holdfast/test/poll"
)

func TestContainersWithTheirOwnPidNamespace(t *testing.T) {
	var cs []container
	for range 4 {
		cs = append(cs, run(t, own, busy))
	}
	cs[0].exec(t, "sleep inf")
	grown(t, cs...)
	for _, c := range cs {
		if gs := c.Groups(); !c.Alone() || !c.Alive() || len(gs) != 1 || gs[0].Dir() != c.dir || !gs[0].CanKill() {
			t.Fatalf("%s: alone %v, groups %v", c, c.Alone(), gs)
		}
	}
	mustDie(t, new(kill.Killer).Kill(t.Context(), targets(cs)), cs...)
	mustDie(t, new(kill.Killer).Kill(t.Context(), targets(cs)), cs...) // killing dead containers again
}

// Containers in a pid namespace of another container survive their init. A fork storm and
// processes that have left the session and their parent do not survive cgroup.kill.
func TestContainersInASharedPidNamespace(t *testing.T) {
	other := run(t, own, "sleep inf & wait")
	cs := []container{
		run(t, host, busy),
		run(t, other.Pid(), busy),
		run(t, other.Pid(), "sleep inf"),
	}
	cs[0].exec(t, "sleep inf")
	cs[1].exec(t, "setsid sleep inf & sleep inf")
	grown(t, cs[:2]...)
	for _, c := range cs {
		if c.Alone() {
			t.Errorf("%s counts as alone in its pid namespace", c)
		}
	}
	mustDie(t, new(kill.Killer).Kill(t.Context(), targets(cs)), cs...)
	if !other.Alive() {
		t.Error("the container that shared its pid namespace died, too")
	}
	mustDie(t, new(kill.Killer).Kill(t.Context(), []*kill.Target{other.Target}), other)
}

// A container whose init is dead while its children live.
func TestInitIsDead(t *testing.T) {
	c := run(t, host, "sleep inf & setsid sleep inf & wait")
	hasProcesses(t, 3, c)
	if err := c.Init().Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "init is dead", c.Init().Exited)
	if !c.Alive() {
		t.Fatal("the container died with its init")
	}
	mustDie(t, new(kill.Killer).Kill(t.Context(), []*kill.Target{c.Target}), c)
}

// Frozen processes on v2 die without being thawed, whichever process froze them.
func TestFrozen(t *testing.T) {
	for name, pidNS := range map[string]int{"own": own, "host": host} {
		t.Run(name, func(t *testing.T) {
			c := run(t, pidNS, busy)
			grown(t, c)
			if err := c.Groups()[0].Freeze(time.Minute); err != nil {
				t.Fatal(err)
			}
			mustDie(t, new(kill.Killer).Kill(t.Context(), []*kill.Target{c.Target}), c)
		})
		t.Run(name+" by a group above", func(t *testing.T) {
			c := run(t, pidNS, busy)
			grown(t, c)
			write(t, slice+"/cgroup.freeze", "1")
			defer write(t, slice+"/cgroup.freeze", "0")
			poll.Until(t, "it is frozen", func() bool {
				frozen, err := c.Groups()[0].Frozen()
				return err == nil && frozen
			})
			mustDie(t, new(kill.Killer).Kill(t.Context(), []*kill.Target{c.Target}), c)
		})
	}
}

func TestFiftyAtOnce(t *testing.T) {
	var cs []container
	for i := range 50 {
		pidNS, script := own, "sleep inf & setsid sleep inf & wait"
		if i%2 == 1 {
			pidNS = host
		}
		if i%5 == 0 { // fork storms in all of them would take the emulated machine a minute
			script = busy
		}
		cs = append(cs, run(t, pidNS, script))
	}
	cs[0].exec(t, "sleep inf")
	hasProcesses(t, 3, cs...)
	mustDie(t, new(kill.Killer).Kill(t.Context(), targets(cs)), cs...)
}

// A container with control groups below its own, as one with an init system: its
// processes are in leaves, one of them a threaded group, whose cgroup.procs cannot be
// read (EOPNOTSUPP, cgroups(7)).
func TestGroupsBelow(t *testing.T) {
	for name, kind := range map[string]string{"domain": "", "threaded": "threaded"} {
		t.Run(name, func(t *testing.T) {
			c := run(t, host, busy)
			grown(t, c)
			leaf := c.dir + "/init.scope"
			if err := os.Mkdir(leaf, 0o755); err != nil {
				t.Fatal(err)
			}
			if kind != "" {
				write(t, leaf+"/cgroup.type", kind)
			}
			write(t, leaf+"/cgroup.procs", strconv.Itoa(c.Pid()))
			inLeaf := hold(t, c.ID, c.Pid())
			if gs := inLeaf.Groups(); len(gs) != 1 || gs[0].Dir() != c.dir {
				t.Errorf("groups %v, want %s", gs, c.dir)
			}
			mustDie(t, new(kill.Killer).Kill(t.Context(), []*kill.Target{inLeaf}), c)
		})
	}
}

// A process that was put into the control group from outside is not in the container's
// pid namespace and survives its init.
func TestStrangerInTheGroup(t *testing.T) {
	c := run(t, own, busy)
	grown(t, c)
	start(t, c.dir, host, "setsid sleep inf & sleep inf")
	mustDie(t, new(kill.Killer).Kill(t.Context(), []*kill.Target{c.Target}), c)
}

// A container at its limit of processes cannot fork, and is killed nevertheless.
func TestAtItsLimitOfProcesses(t *testing.T) {
	c := run(t, host, busy)
	grown(t, c)
	write(t, c.dir+"/pids.max", "1")
	mustDie(t, new(kill.Killer).Kill(t.Context(), []*kill.Target{c.Target}), c)
}

// A container without an open handle is found by its id and killed with all processes in
// its group, as at a deadman's deadline.
func TestSearch(t *testing.T) {
	c, other := run(t, host, "sleep inf & setsid sleep inf & wait"), run(t, own, busy)
	hasProcesses(t, 3, c)
	o, err := kill.NewOpener()
	if err != nil {
		t.Fatal(err)
	}
	found, err := o.Search([]string{c.ID})
	if err != nil || len(found) != 1 || len(found[c.ID]) != 1 || found[c.ID][0].Dir() != c.dir {
		t.Fatalf("found %v, %v", found, err)
	}
	if err := found[c.ID][0].Kill(); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "it is dead", func() bool { return !c.Alive() })
	if !other.Alive() {
		t.Error("another container died too")
	}
}
