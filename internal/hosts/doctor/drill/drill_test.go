package drill

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/hosts/doctor/rule"
)

// Every drill causes an existing finding and has bounds.
func TestDrillsAreWhole(t *testing.T) {
	rules := make(map[string]bool)
	for _, r := range rule.All() {
		rules[r.Name] = true
	}
	seen := make(map[string]bool)
	for _, d := range All() {
		if seen[d.Name] || !rules[d.Rule] || d.Short == "" || d.Unit == "" || d.Size < 1 || d.MaxSize < d.Size || len(d.parts) == 0 {
			t.Errorf("drill %q: duplicate, without a finding, or without bounds", d.Name)
		}
		seen[d.Name] = true
	}
	for _, r := range rule.All() {
		drilled := slices.ContainsFunc(All(), func(d Drill) bool { return d.Rule == r.Name })
		if _, excused := Without()[r.Name]; drilled == excused {
			t.Errorf("check %s: it needs a drill, or a reason in Without", r.Name)
		}
	}
	if _, err := Find("none"); !errors.Is(err, holdfast.ErrNotFound) || holdfast.HintOf(err) == "" {
		t.Errorf("error %v", err)
	}
}

// Impossible options are refused before anything is created.
func TestRefused(t *testing.T) {
	d, err := Find("zombies")
	if err != nil {
		t.Fatal(err)
	}
	for want, o := range map[string]Options{
		"is not from 1s":    {For: time.Hour},
		"-1 is not from 1":  {Size: -1},
		"1000000 is not":    {Size: 1_000_000},
		"in control groups": {Image: "busybox"},
	} {
		o.Dir = t.TempDir()
		if err := Run(t.Context(), d, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	logger, err := Find("fadvise")
	if err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), logger, Options{Image: "busybox", Dir: t.TempDir()}); !errors.Is(err, holdfast.ErrEngine) {
		t.Errorf("error %v", err)
	}
	if err := Run(t.Context(), logger, Options{Dir: "/dev/shm"}); err == nil || !strings.Contains(err.Error(), "in memory") || !strings.Contains(holdfast.HintOf(err), "--dir") {
		t.Errorf("error %v", err)
	}
}

// A drill's process refuses a task beyond its bounds.
func TestImpossibleTasks(t *testing.T) {
	for _, task := range []string{
		"", "{", `{"drill":"none"}`, `{"drill":"throttle","part":"worker","size":2}`,
		`{"drill":"throttle","part":"none","size":2,"for_ns":1000}`,
		`{"drill":"throttle","part":"worker","size":0,"for_ns":1000}`,
		`{"drill":"throttle","part":"worker","size":65,"for_ns":1000}`,
		`{"drill":"throttle","part":"worker","size":2,"for_ns":3600000000000}`,
		`{"drill":"throttle","part":"worker","size":2,"for_ns":1000,"join":["/no/such/group"]}`,
	} {
		if err := Work(t.Context(), []string{task}); err == nil {
			t.Errorf("task %s is accepted", task)
		}
	}
	if err := Work(t.Context(), nil); err == nil {
		t.Error("a missing task is accepted")
	}
}

// A drill's process ends when its time is over, and when it is stopped.
func TestWorkEnds(t *testing.T) {
	task := `{"drill":"thrash","part":"reader","size":1,"for_ns":300000000,"dir":"` + t.TempDir() + `"}`
	if err := Work(t.Context(), []string{task}); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	long := strings.Replace(task, "300000000", "60000000000", 1)
	if err := Work(ctx, []string{long}); err != nil {
		t.Error(err)
	}
}
