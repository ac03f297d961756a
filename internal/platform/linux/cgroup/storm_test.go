package cgroup_test

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
	"holdfast/test/poll"
	"holdfast/test/vm"
	"holdfast/test/vm/vmtest"
)

// All tests of this package run on the hierarchies of this host, and again in a
// machine with v2 only.
func TestOnPureV2(t *testing.T) {
	vmtest.Run(t, ".", vm.Config{Busybox: []string{"sh", "sleep"}})
}

// storm waits until it is moved into its group, and then forks endlessly, a few at a
// time.
const storm = "read go; while :; do for i in 1 2 3 4; do sleep 0.02 & done; wait; done"

// No fork escapes a kill, in the group or below it.
func TestKillStorm(t *testing.T) {
	for _, g := range groups(t) {
		below := g
		below.Path += "/below"
		for _, x := range []cgroup.Group{g, below} {
			into(t, x, exec.Command("sh", "-c", storm))
		}
		poll.Until(t, "both have forked", func() bool { return len(procs(t, below)) > 1 && len(procs(t, g)) > 3 })
		poll.Until(t, "the group is empty", func() bool { // on v1 Kill has to be repeated
			if err := g.Kill(); err != nil {
				t.Fatal(err)
			}
			empty, err := g.Empty()
			if err != nil {
				t.Fatal(err)
			}
			return empty
		})
		if pids := procs(t, g); len(pids) > 0 {
			t.Errorf("v2=%v: processes in an empty group: %v", g.V2, pids)
		}
	}
}

// A wait ends with the last process. On v2 only the test's own time limit would also end
// it.
func TestWaitChange(t *testing.T) {
	for _, g := range groups(t) {
		pid := into(t, g, exec.Command("sleep", "inf"))
		later := time.AfterFunc(20*time.Millisecond, func() { _ = unix.Kill(pid, unix.SIGKILL) })
		defer later.Stop()
		poll.Until(t, "the group is empty", func() bool {
			if err := cgroup.WaitChange([]cgroup.Group{g}, time.Hour); err != nil {
				t.Fatal(err)
			}
			empty, err := g.Empty()
			return empty && err == nil
		})
	}
}

func TestGroupsOfProcess(t *testing.T) {
	for _, g := range groups(t) {
		pid := into(t, g, exec.Command("sleep", "inf"))
		mounts, err := cgroup.Find(proc.Host)
		if err != nil {
			t.Fatal(err)
		}
		gs, err := mounts.Of(proc.Host, pid)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(gs, func(o cgroup.Group) bool { return o.Dir() == g.Dir() && o.V2 == g.V2 }) {
			t.Errorf("groups %+v, want %+v among them", gs, g)
		}
	}
}

// into starts a command, moves it into the group and continues it.
func into(t *testing.T, g cgroup.Group, cmd *exec.Cmd) (pid int) {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // killed
		close(ended)
	}()
	t.Cleanup(func() {
		_ = g.Kill()
		_ = cmd.Process.Kill() // in case it never entered the group
		<-ended
	})
	if err := os.WriteFile(g.Dir()+"/cgroup.procs", fmt.Append(nil, cmd.Process.Pid), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

func procs(t *testing.T, g cgroup.Group) []int {
	t.Helper()
	pids, err := g.Procs()
	if err != nil {
		t.Fatal(err)
	}
	return pids
}
