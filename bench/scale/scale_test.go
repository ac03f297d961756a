package scale_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/bench/rig"
	"holdfast/bench/scale"
)

// Roles of this test binary as its own child.
const (
	roleDirectory = "directory"
)

func TestMain(m *testing.M) {
	if len(os.Args) < 2 {
		goleak.VerifyTestMain(m)
		return
	}
	var err error
	switch os.Args[1] {
	case rig.RoleMember:
		err = rig.Member(context.Background(), os.Args[2:], os.Stdin, os.Stdout)
	case roleDirectory:
		err = scale.MeasureDirectory(context.Background(), os.Args[2:], os.Stdout)
	default:
		goleak.VerifyTestMain(m)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// The whole experiment in small: every lost session is back at the end.
func TestScale(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: three etcd members and leases that run out take their time")
	}
	o := scale.Options{
		Nodes: 20, Sessions: 400, Lost: 0.1, Directories: 2, Watchers: 3,
		Boot: 20 * time.Millisecond, Steady: 2 * time.Second, Patience: 5 * time.Minute,
		Member: []string{"/proc/self/exe", rig.RoleMember}, Directory: []string{"/proc/self/exe", roleDirectory},
		Progress: t.Output(),
	}
	r, err := scale.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.WriteText(t.Output()); err != nil {
		t.Error(err)
	}
	if r.Failed != 0 || r.Score <= 0 {
		t.Errorf("failed %d, score %v", r.Failed, r.Score)
	}
	counts := map[string]int{}
	for _, row := range r.Rows {
		counts[row.Name] = row.N
		if strings.HasPrefix(row.Name, "etcd writes") && row.P50 <= 0 {
			t.Errorf("row %+v", row)
		}
	}
	// Two nodes of 20 had 20 sessions each, and their clients asked both
	// directories.
	if counts["ready again, after the loss"] != 40 || counts["loss seen by a directory, after the loss"] < 2*40 {
		t.Errorf("got %v", counts)
	}
}

func TestScaleRefusesWhatCannotBe(t *testing.T) {
	for what, o := range map[string]scale.Options{
		"one node":                        {Nodes: 1, Sessions: 10, Lost: 0.5},
		"no sessions":                     {Nodes: 10, Lost: 0.5},
		"no node lost":                    {Nodes: 10, Sessions: 10},
		"no node left":                    {Nodes: 10, Sessions: 10, Lost: 1},
		"the watching nodes are lost too": {Nodes: 10, Sessions: 10, Lost: 0.5, Directories: 6},
	} {
		if _, err := scale.Run(t.Context(), o); err == nil {
			t.Errorf("%s: accepted", what)
		}
	}
}
