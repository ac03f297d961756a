package cgroup2

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"testing"

	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/sessions/guardian"
	"holdfast/test/vm"
	"holdfast/test/vm/guest"
	"holdfast/test/vm/vmtest"
)

// TestMain also runs the roles of the test program: a guardian, a program that kills
// containers, and the parts of an engine.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 {
		switch os.Args[1] {
		case "guardian":
			os.Exit(guardian.Main(os.Args[2], slog.Default()))
		case "killer":
			exit(killer(os.Args[2]))
		case "daemon":
			exit(daemon(os.Args[2]))
		case "-address":
			exit(shim())
		}
	}
	if !vmtest.Inside() {
		os.Exit(vmtest.Main(m, vm.Config{Busybox: []string{"sh", "setsid", "sleep"}}))
	}
	if err := prepareGroups(); err != nil {
		exit(err)
	}
	os.Exit(m.Run())
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(0)
}

// The other tests depend on these properties of the machine.
func TestHostHasNothingButV2(t *testing.T) {
	mounts, err := cgroup.Find(proc.Host)
	if err != nil {
		t.Fatal(err)
	}
	if len(mounts) != 1 || !mounts[0].V2 || mounts[0].Point != guest.CgroupRoot {
		t.Errorf("mounts: %+v", mounts)
	}
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil || !bytes.HasPrefix(b, []byte("0::/")) || bytes.Count(b, []byte("\n")) != 1 {
		t.Errorf("groups: %s, %v", b, err)
	}
	on, err := os.ReadFile(slice + "/cgroup.subtree_control")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []string{"cpu", "memory", "pids"} {
		if !bytes.Contains(on, []byte(c)) {
			t.Errorf("controller %s is off: %s", c, on)
		}
	}
}
