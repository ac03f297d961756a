package probe

import (
	"fmt"
	"os"
	"testing"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/proc"
)

// dirtied reads the probe on a host with files, and on that with other files at the end.
func dirtied(t *testing.T, before, after map[string]string) *fact.Set {
	t.Helper()
	root := t.TempDir()
	files(t, root, before)
	begin := time.Now()
	s, err := dirtyProbe().Open(t.Context(), Host{Proc: proc.FS(root)}, begin)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	files(t, root, after)
	fs, err := s.Read(t.Context(), begin.Add(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	set := &fact.Set{}
	set.Add(fs...)
	return set
}

func dirtyStat(dirty, writeback, most, background int) string {
	return fmt.Sprintf("nr_dirty %d\nnr_writeback %d\nnr_dirty_threshold %d\nnr_dirty_background_threshold %d\n", dirty, writeback, most, background)
}

// While the limit is small, it is known how often and for how long writers wait.
func TestDirty(t *testing.T) {
	io := "some avg10=0.00 avg60=0.00 avg300=0.00 total=%d\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
	set := dirtied(t,
		map[string]string{"vmstat": dirtyStat(3, 0, 16, 8), "sys/vm/dirty_bytes": "65536\n", "sys/vm/dirty_ratio": "0\n", "pressure/io": fmt.Sprintf(io, 1_000_000)},
		map[string]string{"vmstat": dirtyStat(9, 4, 16, 8), "pressure/io": fmt.Sprintf(io, 6_000_000)})
	limit, _ := set.Host(fact.DirtyLimit)
	asked, _ := set.Host(fact.DirtyBytes)
	near, _ := set.Host(fact.DirtyNear)
	waits, _ := set.Host(fact.DirtyWaits)
	if limit != float64(16*os.Getpagesize()) || asked != 65536 || near != 0.5 || waits != 0.5 || set.Has(fact.DirtyRatio) {
		t.Errorf("%+v", set.Facts)
	}
	set = dirtied(t, map[string]string{"vmstat": dirtyStat(13, 0, 16, 8), "sys/vm/dirty_bytes": "0\n", "sys/vm/dirty_ratio": "1\n"}, nil)
	if ratio, _ := set.Host(fact.DirtyRatio); ratio != 0.01 || len(set.Facts) != 3 { // no pressure files
		t.Errorf("%+v", set.Facts)
	}
	set = dirtied(t, map[string]string{"vmstat": dirtyStat(9000, 0, 9000, 4500), "sys/vm/dirty_bytes": "0\n", "sys/vm/dirty_ratio": "20\n"}, nil)
	if set.Has(fact.DirtyNear) || len(set.Facts) != 2 {
		t.Errorf("a usual limit is not observed: %+v", set.Facts)
	}
	if _, err := dirtyProbe().Open(t.Context(), Host{Proc: proc.FS(t.TempDir())}, time.Now()); err == nil {
		t.Error("a host without vmstat has a limit")
	}
}

// This kernel has a limit, by its setting.
func TestDirtyHere(t *testing.T) {
	facts, err := Read(t.Context(), Host{Proc: proc.Host}, "dirty")
	if err != nil {
		t.Fatal(err)
	}
	set := &fact.Set{}
	set.Add(facts...)
	limit, ok := set.Host(fact.DirtyLimit)
	if !ok || limit <= 0 || set.Has(fact.DirtyBytes) == set.Has(fact.DirtyRatio) {
		t.Errorf("%+v", facts)
	}
}
