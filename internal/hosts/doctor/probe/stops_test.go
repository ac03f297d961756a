package probe

import (
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/platform/linux/tracepoint"
)

// A program is a fact if it stops processes of a container that it is not in. Its signals to the same
// container are one fact.
func TestStopFacts(t *testing.T) {
	root := t.TempDir()
	db := "/docker/" + strings.Repeat("a", 64)
	for pid, of := range map[string][2]string{
		"7": {"snapshot", "/system.slice/snapshot.service"}, "8": {"db", db}, "9": {"sh", db}, "10": {"other", "/system.slice/other.service"},
	} {
		files(t, root, map[string]string{pid + "/cgroup": "0::" + of[1] + "\n", pid + "/stat": pid + " (" + of[0] + ") S 1" + strings.Repeat(" 0", 30) + "\n"})
	}
	if err := os.MkdirAll(root+"/self/ns", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("pid:[4026531836]", root+"/self/ns/pid"); err != nil { // the first namespace
		t.Fatal(err)
	}
	h := Host{Proc: proc.FS(root), Groups: cgroup.Mounts{{Point: root, Root: "/", V2: true}}}
	fs, err := stopFacts(h, []tracepoint.Place{
		{Pid: 7, Command: "snapshot", Object: 8, Count: 4}, {Pid: 7, Command: "snapshot", Object: 9, Count: 1},
		{Pid: 9, Object: 8, Count: 50},  // in the same container
		{Pid: 7, Object: 10, Count: 50}, // of no container
		{Pid: 7, Object: 11, Count: 50}, // it has ended
		{Pid: 12, Command: "kill", Object: 8, Count: 2},
	}, 0)
	if err != nil {
		t.Fatal(err)
	}
	set := &fact.Set{}
	set.Add(fs...)
	got := set.Of(fact.Stops)
	if len(got) != 2 || got[0].Value != 5 || got[0].Subject.Pid != 7 || got[0].Subject.Device != db || got[1].Value != 2 || got[1].Subject.Command != "kill" {
		t.Errorf("%+v", got)
	}

	fs, err = trapFacts(h, []tracepoint.Place{
		{Pid: 8, Object: 7, Count: 4}, {Pid: 9, Object: 7, Count: 2}, // two processes of a container
		{Pid: 8, Object: 9, Count: 50},  // a tracer in the same container
		{Pid: 10, Object: 7, Count: 50}, // a process of no container
		{Pid: 8, Object: 12, Count: 50}, // the tracer has ended
	}, 2*time.Second)
	if want := (fact.Subject{Cgroup: "/system.slice/snapshot.service", Pid: 7, Command: "snapshot", Device: db}); err != nil || len(fs) != 1 || fs[0].Value != 3 || !reflect.DeepEqual(fs[0].Subject, want) {
		t.Errorf("%+v, %v", fs, err)
	}
}

// The changes of a container's freezer are counted, on both versions.
func TestFreezeFacts(t *testing.T) {
	web := "/docker/" + strings.Repeat("b", 64)
	for _, x := range []struct {
		mount                cgroup.Mount
		file, frozen, thawed string
	}{
		{cgroup.Mount{V2: true}, "cgroup.events", "populated 1\nfrozen 1\n", "populated 1\nfrozen 0\n"},
		{cgroup.Mount{Controllers: []string{"freezer"}}, "freezer.state", "FROZEN\n", "THAWED\n"},
	} {
		root := t.TempDir()
		x.mount.Point = root
		h := Host{Groups: cgroup.Mounts{x.mount}}
		var samples []levels
		for _, state := range []string{x.thawed, x.frozen, x.thawed, x.frozen} {
			files(t, root, map[string]string{web + "/" + x.file: state})
			samples = append(samples, levels{of: frozenContainers(h)})
		}
		set := &fact.Set{}
		set.Add(freezeFacts(samples)...)
		changes, _ := set.Group(fact.Freezes, web)
		share, _ := set.Group(fact.FrozenShare, web)
		if changes != 3 || share != 0.5 {
			t.Errorf("%s: %v changes, frozen for %v of the time", x.file, changes, share)
		}
		if fs := freezeFacts(samples[:1]); len(fs) > 0 {
			t.Errorf("one sample: %+v", fs)
		}
	}
}
