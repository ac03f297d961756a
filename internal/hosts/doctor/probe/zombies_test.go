package probe

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/proc"
)

// zombiesOf examines a host and returns the facts about zombies.
func zombiesOf(t *testing.T, h Host, meanwhile func()) []fact.Fact {
	t.Helper()
	s, err := stuckProbe().Open(t.Context(), h, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	meanwhile()
	fs, err := s.Read(t.Context(), time.Now().Add(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	set := &fact.Set{}
	set.Add(fs...)
	return set.Of(fact.Zombies)
}

// A process that never waits for its children is named with the number of its zombies, which end
// with it.
func TestZombies(t *testing.T) {
	h := (&fixture{t: t}).thisHost()
	pid, end := sleeperUntil(t, "zombies", "-")
	mine := func(meanwhile func()) (found []fact.Fact) {
		for _, f := range zombiesOf(t, h, meanwhile) {
			if f.Subject.Pid == pid {
				found = append(found, f)
			}
		}
		return found
	}
	var fs []fact.Fact
	for range 100 { // until all have ended
		if fs = mine(func() {}); len(fs) == 1 && fs[0].Value == 60 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if len(fs) != 1 || fs[0].Value != 60 || fs[0].Subject.Command == "" || fs[0].Over < 9 {
		t.Errorf("%+v", fs)
	}
	if fs := mine(end); len(fs) != 0 {
		t.Errorf("after the end of the parent: %+v", fs)
	}
}

// The zombies of a container's parents count together. Outside containers each parent counts alone,
// and a process whose first thread alone has ended is no zombie.
func TestZombiesByGroup(t *testing.T) {
	root := t.TempDir()
	h := Host{Proc: proc.FS(root)}
	group := "/docker/" + strings.Repeat("0123456789abcdef", 4)
	// The scan leaves out this process. No process has a number from PID_MAX_LIMIT on (proc_sys_kernel(5)).
	const first = 1 << 22
	tree := make(map[string]string)
	stat := func(pid, parent int, state string) string {
		return fmt.Sprintf("%d (helper) %s %d 0 0 0 -1 0"+strings.Repeat(" 0", 12)+" 5 0 0\n", pid, state, parent)
	}
	add := func(pid, parent int, state, cgroup string, tids ...int) {
		pid, parent = first+pid, first+parent
		for _, file := range []string{fmt.Sprintf("%d/stat", pid), fmt.Sprintf("%d/task/%d/stat", pid, pid)} {
			tree[file] = stat(pid, parent, state)
		}
		tree[fmt.Sprintf("%d/cgroup", pid)] = "0::" + cgroup + "\n"
		for _, tid := range tids {
			tree[fmt.Sprintf("%d/task/%d/stat", pid, tid)] = stat(tid, parent, "S")
		}
	}
	for _, p := range []struct {
		pid   int
		group string
	}{{10, group}, {11, group}, {12, "/system.slice/a.service"}, {13, "/system.slice/a.service"}} {
		add(p.pid, 1, "S", p.group)
	}
	for i := range 200 {
		add(1000+i, 10+i%4, "Z", "/")
	}
	for i := range 100 {
		add(3000+i, 12, "Z", "/system.slice/a.service", 5000+i)
	}
	files(t, root, tree)
	fs := zombiesOf(t, h, func() {
		files(t, root, map[string]string{fmt.Sprintf("%[1]d/task/%[1]d/stat", first+1001): stat(first+1001, first+11, "S")}) // another process with its number
		if err := os.RemoveAll(fmt.Sprintf("%s/%d", root, first+1003)); err != nil {
			t.Fatal(err)
		}
	})
	var got []string
	for _, f := range fs {
		got = append(got, fmt.Sprint(f.Subject.Pid-first, " ", f.Value))
	}
	if strings.Join(got, ", ") != "10 99, 12 50, 13 49" {
		t.Errorf("%v", got)
	}
}
