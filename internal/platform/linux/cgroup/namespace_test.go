package cgroup_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
	"holdfast/test/poll"
)

// The variable that makes this program a process of TestNamespace. Its value is the
// role and the pid of the other process, whose group the second one reports.
const inNamespace = "HOLDFAST_TEST_CGROUP_NAMESPACE"

// said is the report of the process in the namespace.
type said struct {
	Mounts  cgroup.Mounts
	Members []cgroup.Member
	Groups  []cgroup.Group
}

// A process in its own cgroup namespace, with the host's control groups mounted,
// finds the groups of itself and of others.
func TestNamespace(t *testing.T) {
	if role, pid, ok := strings.Cut(os.Getenv(inNamespace), " "); ok {
		n, err := strconv.Atoi(pid)
		if err != nil {
			t.Fatal(err)
		}
		namespaced(t, role, n)
		return
	}
	for _, g := range groups(t) {
		own, other := g, g
		own.Path += "/below/own"
		other.Path += "/other"
		for _, x := range []cgroup.Group{own, other} {
			if err := os.Mkdir(x.Dir(), 0o755); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				poll.Until(t, "the group can be removed", func() bool { return os.Remove(x.Dir()) == nil })
			})
		}
		pid := into(t, other, exec.Command("sleep", "inf"))
		out := filepath.Join(t.TempDir(), "said")
		again(t, "outside", pid, 0, "HOLDFAST_TEST_OUT="+out, "HOLDFAST_TEST_GROUP="+own.Dir())
		text, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		var s said
		if err := json.Unmarshal(text, &s); err != nil {
			t.Fatal(err)
		}
		is := func(controllers []string, v2 bool) bool {
			return v2 == g.V2 && strings.Join(controllers, ",") == strings.Join(g.Controllers, ",")
		}
		seen := 0
		for _, m := range s.Mounts {
			if is(m.Controllers, m.V2) {
				if seen++; m.Root != "/" || m.Base != own.Path {
					t.Errorf("the mount is %+v, its namespace is in %s", m, own.Path)
				}
			}
		}
		for _, m := range s.Members {
			if is(m.Controllers, m.V2) {
				if seen++; m.Path != other.Path {
					t.Errorf("the other is in %s, and seen in %s", other.Path, m.Path)
				}
			}
		}
		for _, x := range s.Groups {
			if is(x.Controllers, x.V2) {
				if seen++; x.Dir() != other.Dir() {
					t.Errorf("the other's group is %s, and seen as %s", other.Dir(), x.Dir())
				}
			}
		}
		if seen != 3 {
			t.Errorf("the report has %d of a mount, a member and a group: %+v", seen, s)
		}
	}
}

// again runs this test in another process, in a role.
func again(t *testing.T, role string, pid int, clone uintptr, env ...string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestNamespace$")
	cmd.Env = append(append(os.Environ(), inNamespace+"="+role+" "+strconv.Itoa(pid)), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: clone}
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
}

// namespaced runs a role: a process that enters its group, and starts another one
// with a namespace there.
func namespaced(t *testing.T, role string, pid int) {
	t.Helper()
	if role == "outside" {
		if err := os.WriteFile(filepath.Join(os.Getenv("HOLDFAST_TEST_GROUP"), "cgroup.procs"), []byte("0"), 0); err != nil {
			t.Fatal(err)
		}
		again(t, "inside", pid, unix.CLONE_NEWCGROUP)
		return
	}
	var s said
	var err error
	if s.Mounts, err = cgroup.Find(proc.Host); err != nil {
		t.Fatal(err)
	}
	if s.Members, err = s.Mounts.Members(proc.Host, pid); err != nil {
		t.Fatal(err)
	}
	if s.Groups, err = s.Mounts.Of(proc.Host, pid); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(os.Getenv("HOLDFAST_TEST_OUT"), text, 0o600); err != nil {
		t.Fatal(err)
	}
}
