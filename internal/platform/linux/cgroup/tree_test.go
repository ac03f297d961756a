package cgroup_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/cgroup"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// A container makes groups: deep ones, with paths beyond PATH_MAX, and many. A process is in
// the deepest group, another one among the many; in v1 the deepest group is frozen. A kill
// ends both.
func TestKillHostile(t *testing.T) {
	deep := strings.Split(strings.TrimSuffix(strings.Repeat(strings.Repeat("n", 250)+"/", 20), "/"), "/") // 5,020 bytes
	wide := 200
	if labtest.Long() {
		deep, wide = strings.Split(strings.TrimSuffix(strings.Repeat("deep/", 2000), "/"), "/"), 20_000
	}
	for _, g := range groups(t) {
		t.Run(fmt.Sprintf("v2=%v", g.V2), func(t *testing.T) {
			end := dig(t, g.Dir()+"/below", deep)
			defer fillIn(t, g.Dir()+"/below", deep)
			many := make([]string, wide)
			for i := range many {
				many[i] = fmt.Sprintf("%s/wide-%d", g.Dir(), i)
				if err := os.Mkdir(many[i], 0o755); err != nil {
					t.Fatal(err)
				}
				defer removed(t, func() error { return os.Remove(many[i]) })
			}
			var cmds []*exec.Cmd
			for _, dir := range []string{end, many[wide/2]} {
				cmd := exec.Command("sleep", "inf")
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				defer cmd.Process.Kill() // it may have ended
				if err := os.WriteFile(dir+"/cgroup.procs", fmt.Append(nil, cmd.Process.Pid), 0); err != nil {
					t.Fatal(err)
				}
				cmds = append(cmds, cmd)
			}
			if pids := procs(t, g); len(pids) != 2 {
				t.Errorf("the processes are %v", pids)
			}
			if !g.V2 {
				if err := os.WriteFile(end+"/freezer.state", []byte("FROZEN"), 0); err != nil {
					t.Fatal(err)
				}
			}
			begun := time.Now()
			poll.Until(t, "the group is empty", func() bool {
				if err := g.Kill(); err != nil {
					t.Fatal(err)
				}
				empty, err := g.Empty()
				if err != nil {
					t.Fatal(err)
				}
				return empty
			})
			t.Logf("a kill in %d groups, %d deep, took %v", len(deep)+wide, len(deep), time.Since(begun))
			for _, c := range cmds {
				_ = c.Wait() // killed
			}
			levels := 0
			if err := g.Walk(func(_ cgroup.Group, depth int) error { levels = max(levels, depth); return nil }); err != nil || levels < 10 {
				t.Errorf("a walk went %d levels deep: %v", levels, err)
			}
		})
	}
}

// dig makes directories, each in the one before, and returns a path of the last one that is
// valid during the test.
func dig(t *testing.T, top string, names []string) string {
	t.Helper()
	at, err := unix.Open(top, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	for _, name := range names {
		if err == nil {
			err = unix.Mkdirat(at, name, 0o755)
		}
		if err == nil {
			was := at
			at, err = unix.Openat(was, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			unix.Close(was)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(at) })
	return fmt.Sprintf("/proc/self/fd/%d", at)
}

// fillIn removes what dig has made, from the last directory on.
func fillIn(t *testing.T, top string, names []string) {
	t.Helper()
	at, err := unix.Open(top, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	step := func(name string) {
		if err == nil {
			was := at
			at, err = unix.Openat(was, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			unix.Close(was)
		}
	}
	for _, name := range names {
		step(name)
	}
	for i := len(names) - 1; i >= 0; i-- {
		step("..")
		if err == nil {
			removed(t, func() error { return unix.Unlinkat(at, names[i], unix.AT_REMOVEDIR) })
		}
	}
	if err != nil {
		t.Error(err)
	}
	unix.Close(at)
}

// removed repeats a removal until the processes of the group have left it.
func removed(t *testing.T, remove func() error) {
	t.Helper()
	poll.Until(t, "the group is removed", func() bool { return remove() == nil })
}
