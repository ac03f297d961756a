package protect_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"holdfast"
	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/protecttest"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/netns"
	"holdfast/internal/platform/linux/proc"
	"holdfast/test/poll"
)

// The processes of a unit are those in the cgroup of its name, as systemd creates it, and
// below it. A protect of the unit holds the addresses on which they listen.
func TestUnit(t *testing.T) {
	needsRoot(t)
	unit := fmt.Sprintf("holdfast-test-%d@1", os.Getpid())
	group := newGroup(t, unit+".service/worker")
	address := protecttest.FreePort(t)
	argv := protecttest.GoServer(address)
	s := protecttest.Start(t, 0, argv...)
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(s.Pid())), 0); err != nil {
		t.Fatal(err)
	}
	protecttest.AwaitListening(t, address)
	for _, name := range []string{unit, unit + ".service"} {
		pids, err := protect.UnitPIDs(name)
		if err != nil || !slices.Equal(pids, []int{s.Pid()}) {
			t.Fatalf("unit %s has the processes %v, %v; want %d", name, pids, err, s.Pid())
		}
		as, err := protect.ListenedBy(netns.OfProcess(pids[0]), pids)
		if err != nil || !slices.Equal(as, protecttest.Addresses(t, address)) {
			t.Errorf("unit %s listens on %v, %v", name, as, err)
		}
	}
	for _, other := range []string{unit + ".socket", "test-" + strconv.Itoa(os.Getpid()) + "@1"} {
		if pids, err := protect.UnitPIDs(other); err == nil || holdfast.HintOf(err) == "" {
			t.Errorf("unit %s has the processes %v, %v", other, pids, err)
		}
	}
	s.Kill()
}

// newGroup creates a cgroup. The end of the test removes it with its parents.
func newGroup(t *testing.T, path string) string {
	t.Helper()
	mounts, err := cgroup.Find(proc.Host)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(mounts, func(m cgroup.Mount) bool { return m.V2 })
	if i < 0 {
		t.Fatal("these tests need a mounted cgroup2")
	}
	dir := filepath.Join(mounts[i].Point, path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for d := dir; d != mounts[i].Point; d = filepath.Dir(d) {
			poll.Until(t, "the control group is empty", func() bool { return os.Remove(d) == nil })
		}
	})
	return dir
}
