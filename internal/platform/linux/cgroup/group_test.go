package cgroup_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
)

// groups makes a group and a child group in each hierarchy of this host that can
// freeze processes.
func groups(t *testing.T) []cgroup.Group {
	t.Helper()
	if os.Geteuid() != 0 {
		if testing.Short() {
			t.Skip("-short without root: control groups are made by root")
		}
		t.Fatal("control groups are made by root")
	}
	ms, err := cgroup.Find(proc.Host)
	if err != nil {
		t.Fatal(err)
	}
	var gs []cgroup.Group
	for _, m := range ms {
		if !m.V2 && !slices.Contains(m.Controllers, "freezer") {
			continue
		}
		g := cgroup.Group{Point: m.Point, Path: fmt.Sprintf("/holdfast-test-%d", os.Getpid()), V2: m.V2, Controllers: m.Controllers}
		below := filepath.Join(g.Dir(), "below")
		if err := os.MkdirAll(below, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			for _, dir := range []string{below, g.Dir()} {
				// A process leaves its group a moment after it is reaped.
				for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
					if err := os.Remove(dir); err == nil || errors.Is(err, os.ErrNotExist) {
						break
					} else if time.Now().After(end) {
						t.Error(err)
						break
					}
				}
			}
		})
		gs = append(gs, g)
	}
	if len(gs) == 0 {
		t.Fatalf("no v2 tree and no freezer among %v", ms)
	}
	return gs
}

// fill starts one process in the group and one below it.
func fill(t *testing.T, g cgroup.Group) []*exec.Cmd {
	t.Helper()
	var cmds []*exec.Cmd
	for _, dir := range []string{g.Dir(), g.Dir() + "/below"} {
		cmd := exec.Command("sleep", "inf")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = g.Thaw()
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // killed
		})
		if err := os.WriteFile(dir+"/cgroup.procs", fmt.Append(nil, cmd.Process.Pid), 0); err != nil {
			t.Fatal(err)
		}
		cmds = append(cmds, cmd)
	}
	return cmds
}

// The test runs on v1 and v2, as far as this host has them.
func TestGroup(t *testing.T) {
	for _, g := range groups(t) {
		t.Run(fmt.Sprintf("v2=%v", g.V2), func(t *testing.T) {
			if empty, err := g.Empty(); !empty || err != nil {
				t.Fatalf("a new group: empty %v, %v", empty, err)
			}
			cmds := fill(t, g)
			pids, err := g.Procs()
			if slices.Sort(pids); err != nil || !slices.Equal(pids, []int{cmds[0].Process.Pid, cmds[1].Process.Pid}) {
				t.Errorf("processes: %v, %v", pids, err)
			}
			if err := g.Freeze(5 * time.Second); err != nil {
				t.Fatal(err)
			}
			if frozen, err := g.Frozen(); !frozen || err != nil {
				t.Errorf("frozen: %v, %v", frozen, err)
			}
			if err := g.Kill(); err != nil { // thaws where it has to
				t.Fatal(err)
			}
			for end := time.Now().Add(10 * time.Second); ; {
				empty, err := g.Empty()
				if err != nil || time.Now().After(end) {
					t.Fatalf("empty: %v, %v", empty, err)
				}
				if empty {
					break
				}
				if err := cgroup.WaitChange([]cgroup.Group{g}, time.Second); err != nil {
					t.Fatal(err)
				}
			}
			for _, c := range cmds {
				if err := c.Wait(); c.ProcessState.Sys().(interface{ Signaled() bool }).Signaled() == false {
					t.Errorf("the process did not end by SIGKILL: %v", err)
				}
			}
		})
	}
}

func TestThaw(t *testing.T) {
	for _, g := range groups(t) {
		fill(t, g)
		below := g
		below.Path += "/below"
		if err := below.Freeze(5 * time.Second); err != nil { // the child group only
			t.Fatal(err)
		}
		if !g.V2 {
			if err := g.Freeze(5 * time.Second); err != nil {
				t.Fatal(err)
			}
			if !below.FreezerAbove() || g.FreezerAbove() {
				t.Errorf("freezer above: %v, %v", below.FreezerAbove(), g.FreezerAbove())
			}
		}
		if err := g.Thaw(); err != nil {
			t.Fatal(err)
		}
		if frozen, err := below.Frozen(); frozen || err != nil {
			t.Errorf("v2=%v: still frozen: %v, %v", g.V2, frozen, err)
		}
	}
}

// EndFreeze continues what BeginFreeze stopped, and leaves a group below that is frozen
// itself.
func TestEndFreeze(t *testing.T) {
	for _, g := range groups(t) {
		fill(t, g)
		below := g
		below.Path += "/below"
		if err := errors.Join(below.Freeze(5*time.Second), g.BeginFreeze()); err != nil {
			t.Fatal(err)
		}
		if err := g.Freeze(5 * time.Second); err != nil { // waits for it
			t.Fatal(err)
		}
		if err := g.EndFreeze(); err != nil {
			t.Fatal(err)
		}
		if frozen, err := below.Frozen(); !frozen || err != nil {
			t.Errorf("v2=%v: the group below: frozen %v, %v", g.V2, frozen, err)
		}
		if frozen, err := g.Frozen(); frozen != false || err != nil {
			t.Errorf("v2=%v: frozen %v, %v", g.V2, frozen, err)
		}
	}
}

// Kill and Freeze refuse roots and groups that contain this process.
func TestGuard(t *testing.T) {
	for _, g := range groups(t) {
		root := g
		root.Path = "/"
		home, err := os.ReadFile("/proc/self/cgroup")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(g.Dir()+"/below/cgroup.procs", []byte("0"), 0); err != nil { // 0 is the writer
			t.Fatal(err)
		}
		defer leave(t, g, home)
		for _, x := range []cgroup.Group{root, g} {
			if err := x.Kill(); !errors.Is(err, cgroup.ErrGuard) {
				t.Errorf("kill %s: %v", x.Dir(), err)
			}
			if err := x.Freeze(time.Second); !errors.Is(err, cgroup.ErrGuard) {
				t.Errorf("freeze %s: %v", x.Dir(), err)
			}
		}
	}
}

// leave moves this process back where it was.
func leave(t *testing.T, g cgroup.Group, home []byte) {
	members, err := cgroup.ParseMembers(home)
	if err != nil {
		t.Error(err)
	}
	for _, m := range members {
		if m.V2 == g.V2 && slices.Equal(m.Controllers, g.Controllers) {
			if err := os.WriteFile(filepath.Join(g.Point, m.Path, "cgroup.procs"), []byte("0"), 0); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestGoneGroupIsEmpty(t *testing.T) {
	for _, v2 := range []bool{true, false} {
		g := cgroup.Group{Point: t.TempDir(), Path: "/gone", V2: v2, Controllers: []string{"freezer"}}
		if empty, err := g.Empty(); !empty || err != nil {
			t.Errorf("v2=%v: empty %v, %v", v2, empty, err)
		}
		if err := errors.Join(g.Kill(), g.Thaw(), g.Freeze(time.Second)); err != nil {
			t.Errorf("v2=%v: %v", v2, err)
		}
	}
}

// CanKill is true on Linux 5.14 and later, which has cgroup.kill.
func TestCanKill(t *testing.T) {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(uts.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	want := major > 5 || major == 5 && minor >= 14
	for _, g := range groups(t) {
		if got := g.CanKill(); got != (g.V2 && want) {
			t.Errorf("v2=%v on Linux %d.%d: %v", g.V2, major, minor, got)
		}
	}
}
