package labtest

import (
	"os"
	"path/filepath"
	"testing"

	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
)

// PreferCPU gives a running container most of the CPU time of the host until the test
// ends, by the weights of its cgroup and of the cgroups above it. The rate at which the
// container works then does not depend on other programs of the host.
func PreferCPU(t testing.TB, pid int) {
	t.Helper()
	mounts, err := cgroup.Find(proc.Host)
	if err != nil {
		t.Fatal(err)
	}
	groups, err := mounts.Of(proc.Host, pid)
	if err != nil {
		t.Fatal(err)
	}
	set := 0
	for _, g := range groups {
		for ; !g.IsRoot(); g.Path = filepath.Dir(g.Path) {
			// The largest weights: sched_group_set_shares, kernel/sched/fair.c;
			// Documentation/admin-guide/cgroup-v2.rst.
			for file, most := range map[string]string{"cpu.shares": "262144", "cpu.weight": "10000"} {
				if weigh(t, filepath.Join(g.Dir(), file), most) {
					set++
				}
			}
		}
	}
	if set == 0 {
		t.Fatalf("no cgroup of process %d has a CPU weight", pid)
	}
}

// weigh writes a weight until the test ends. It returns false if the file does not exist.
func weigh(t testing.TB, file, weight string) bool {
	t.Helper()
	before, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return false
	}
	if err == nil {
		err = os.WriteFile(file, []byte(weight), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(file, before, 0); err != nil && !os.IsNotExist(err) {
			t.Error(err)
		}
	})
	return true
}
