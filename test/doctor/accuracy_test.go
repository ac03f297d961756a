package doctor

import (
	"encoding/json"
	"strings"
	"testing"

	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/drill"
	"holdfast/test/lab/labtest"
)

// benched is the part of a benchmark's result that the tests read.
type benched struct {
	Score float64
	Rows  []struct {
		Name, Unit string
		Max        float64
	}
	Notes   []string
	Details struct {
		Rows []struct {
			Name, Rule      string
			Container       bool
			Runs, Right     int
			Missed, Others  map[string]int
			Machine, Unseen map[string]int
			Evidence        []string
		}
	}
}

func bench(t *testing.T, args ...string) benched {
	t.Helper()
	cmd := command(t, "", nil, append([]string{"bench", "accuracy", "--json"}, args...)...) // runs holdfast-bench, which is beside it
	d := finish(t, cmd)
	var b benched
	if err := json.Unmarshal([]byte(d.out), &b); err != nil {
		t.Fatalf("exit code %d: %v: %s", d.code, err, d.errs)
	}
	return b
}

// rows returns all rows of the accuracy table with -long. Otherwise it leaves out rows that
// load the kernel, the disk or both CPUs, or depend on how busy these are: TestInMachine of
// internal/hosts/doctor runs most of these drills on a kernel of its own.
func rows() []string {
	if !labtest.Long() {
		return []string{"idle", "throttle"}
	}
	all := []string{"idle", "busy", "booting"}
	for _, d := range drill.All() {
		all = append(all, d.Name)
	}
	return all
}

// One run of the accuracy table: every drill is named with its container. On a host that
// is idle, or with -long compiles or boots sessions by the agent, the only findings concern
// other users of this machine.
func TestAccuracyTable(t *testing.T) {
	names := rows()
	b := bench(t, "--runs", "1", "--for", "6s", "--only", strings.Join(names, ","))
	if want := len(names); len(b.Details.Rows) != want {
		t.Fatalf("%d rows, want %d", len(b.Details.Rows), want)
	}
	for _, r := range b.Details.Rows {
		// Tests of other packages run concurrently. Containers then do wait for CPUs,
		// whichever group is named, and the disk fills. The benchmark itself counts that as wrong.
		besides := len(r.Others) - r.Others["noisy-neighbour"] - r.Others["disk-growth"]
		crowded := r.Rule == "" && len(r.Others) > 0 && besides == 0
		if crowded {
			t.Logf("%s: with concurrent tests: %q", r.Name, r.Evidence)
		}
		if r.Runs != 1 || r.Right != 1 && !crowded {
			t.Errorf("%s, %s: right %d of %d, missed %v, others %v\n%q", r.Name, r.Rule, r.Right, r.Runs, r.Missed, r.Others, r.Evidence)
		}
		if len(r.Machine) > 0 {
			t.Logf("%s: other users of this machine: %v\n%q", r.Name, r.Machine, r.Evidence)
		}
	}
	if b.Score != 1 {
		t.Errorf("score %v", b.Score)
	}
}

// The examination of many containers, with a small number: the result is complete, and
// memory use is within its bound. How long it takes depends on the machine: at least doctor.MinFor.
func TestScale(t *testing.T) {
	b := bench(t, "--scale", "--containers", "20", "--processes", "1000", "--for", "5s")
	if len(b.Rows) != 3 || b.Rows[0].Max < doctor.MinFor.Seconds() || b.Rows[2].Max <= 0 || b.Rows[1].Unit != "MiB" || b.Rows[1].Max < 10 || b.Rows[1].Max > 150 {
		t.Errorf("%+v", b.Rows)
	}
	if b.Score < 1 || len(b.Notes) == 0 || !strings.Contains(b.Notes[0], "20 containers, 10") {
		t.Errorf("score %v, %q", b.Score, b.Notes)
	}
	for _, n := range b.Notes {
		if strings.Contains(n, "fewer") || strings.Contains(n, "could not observe") {
			t.Error(n)
		}
	}
}
