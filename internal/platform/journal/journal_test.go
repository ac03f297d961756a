package journal

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
)

type row struct {
	N int `json:"n"`
}

func rows(t *testing.T, f File) []row {
	t.Helper()
	got, err := Read(f, func(r row) bool { return r.N > 0 })
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// Writers that have the file open while another one renames it lose no row.
func TestConcurrentWritersLoseNoRow(t *testing.T) {
	f := File{Path: filepath.Join(t.TempDir(), "rows"), Max: 9 * 60} // a row has 9 bytes
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			if err := f.Append(row{10 + i%90}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	// The rows are in two files: of the sizes 60 and 40.
	if got := rows(t, f); len(got) != 100 {
		t.Errorf("%d rows, want 100", len(got))
	}
}

func TestTornLineCostsOneRow(t *testing.T) {
	f := File{Path: filepath.Join(t.TempDir(), "rows"), Max: 1000}
	if got := rows(t, f); got != nil {
		t.Errorf("a missing file has %v", got)
	}
	if err := os.WriteFile(f.Path, []byte("{\"n\":1}\n{\"n\":2"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.Append(row{3}); err != nil {
		t.Fatal(err)
	}
	if got := rows(t, f); len(got) != 2 || got[0].N != 1 || got[1].N != 3 {
		t.Errorf("the rows are %v, want 1 and 3", got)
	}
}
