package replace

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast"
	"holdfast/bench"
	"holdfast/test/lab/labtest"
)

// Both replicas of a real MariaDB are replaced while clients read at the group's TCP
// address: no client gets an error, and the replicas have all that the primary has.
func TestReplicasAreReplacedUnderLoad(t *testing.T) {
	labtest.NeedLong(t, "four databases are started, and six times one is replaced: 40 s of CPU")
	program := filepath.Join(t.TempDir(), "holdfast")
	if err := labtest.Build(t.Context(), "holdfast/cmd/holdfast", program); err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), Options{N: 2, Beside: 1, Size: 1, Readers: 2, Rest: time.Second, Example: "../../examples/mariadb", Program: program, Progress: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	d := r.Details.(Details)
	if w := d.Ways[0]; w.Errors > 0 || len(d.Different) > 0 || len(w.Replacements) != 2 || w.Queries == 0 {
		t.Errorf("%d queries, %d replaced, errors %v, different %v", w.Queries, len(w.Replacements), w.ErrorTexts, d.Different)
	}
	for _, row := range d.Ways[0].Replacements {
		if row.Error != "" || row.Boot.Disk <= 0 || row.Boot.Init <= 0 || row.Replica == nil || row.Replica.CaughtUp <= 0 || row.Replica.Drained <= 0 {
			t.Errorf("%s: a phase is missing: %+v, %+v", row.Key, row.Replacement, row.Replica)
		}
	}
	if w := d.Ways[len(d.Ways)-1]; w.Errors == 0 {
		t.Error("clients of a single database saw no error while it was replaced: they do not notice errors")
	}
}

func TestResult(t *testing.T) {
	began := time.Now()
	seen := &traffic{kinds: map[string][]asked{
		fresh: {{at: began, took: 30 * time.Millisecond, errors: 2}},
		probe: {{at: began, took: time.Millisecond}, {at: began.Add(time.Second), took: 3 * time.Second}, {at: began.Add(9 * time.Second), took: time.Millisecond}},
	}}
	w := Way{Name: "way", Replacements: []Replacement{{Replacement: holdfast.Replacement{
		Started: began.Add(time.Second), Total: holdfast.Millis(2 * time.Second), Replica: &holdfast.ReplicaPhases{CaughtUp: holdfast.Millis(time.Second)}}}}}
	w.see(seen, began, began.Add(time.Second), began.Add(4*time.Second))
	if w.Queries != 4 || w.Errors != 2 || w.LongestMS != 3000 || w.Replacements[0].Probes.N != 1 || w.Rows[3].Max != 3000 || w.Rows[4].N != 1 {
		t.Errorf("%+v", w)
	}
	r := result(Options{Size: 8}, bench.Machine{}, []Way{w, {LongestMS: 6000}}, []string{"replica db-1 differs"})
	if r.Failed != 4 || r.Score != 2 { // two errors, a wait over MaxWait, a replica
		t.Errorf("failed %d, score %v", r.Failed, r.Score)
	}
	path := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(path, []byte("before\n"+pageBegin+"the last one\n"+pageEnd+"after\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := WritePage(path, r); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(page), "| **way** | 1 | 4 | 2 | 3000 ms |") || !strings.Contains(string(page), "| caught up | 1 | 1000.0 |") || strings.Contains(string(page), "the last one") {
		t.Errorf("%s, %v", page, err)
	}
}
