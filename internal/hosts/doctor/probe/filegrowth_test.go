package probe

import (
	"math"
	"path/filepath"
	"testing"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/proc"
)

// A process whose open files or mappings grow is a fact, others are not.
func TestFileGrowth(t *testing.T) {
	root := t.TempDir()
	h := Host{Proc: proc.FS(root)}
	files(t, root, map[string]string{"7/limits": "Max open files            1024                 4096                 files\n", "8/limits": "Max open files            1024                 4096                 files\n"})
	before := map[int]float64{7: 100, 8: 100}
	fs, err := heldGrowth(h, numbersHeld{before, map[int]float64{7: 0.5, 8: 0.6}}, numbersHeld{map[int]float64{7: 356, 8: 140, 9: 5000}, map[int]float64{7: 0.6, 8: 0.6, 9: 0.9}}, 10e9)
	if err != nil {
		t.Fatal(err)
	}
	set := &fact.Set{}
	set.Add(fs...)
	if grown, more := set.Of(fact.FilesGrown), set.Of(fact.FilesGrowth); len(grown) != 1 || grown[0].Subject.Pid != 7 || grown[0].Value != 356.0/1024 || len(more) != 1 || more[0].Value != 0.025 {
		t.Errorf("%+v", fs)
	}
	if grown, more := set.Of(fact.MapsGrown), set.Of(fact.MapsGrowth); len(grown) != 1 || grown[0].Subject.Pid != 7 || grown[0].Value != 0.6 || len(more) != 1 || math.Abs(more[0].Value-0.01) > 1e-9 {
		t.Errorf("%+v", fs)
	}
	files(t, root, map[string]string{"7/fd/0": "", "7/fd/1": ""})
	if n := descriptors(filepath.Join(root, "7/fd")); n < 2 {
		t.Errorf("%v open files", n)
	}
}
