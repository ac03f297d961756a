package cure

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"holdfast/internal/platform/linux/kfile"
)

// DropCaches drops the page cache, the directory entries and the inodes of the whole
// host. Holdfast never does this by itself.
func DropCaches() Cure {
	return Cure{Name: "drop-caches", prepare: func(_ context.Context, e Env, o Options) (prepared, error) {
		file := filepath.Join(string(e.Host.Proc), "sys/vm/drop_caches")
		measure := func(context.Context) ([]Measure, error) { return readMeminfo(string(e.Host.Proc)) }
		now, err := measure(context.Background())
		if err != nil {
			return prepared{}, err
		}
		cached := 0.0
		for _, m := range now {
			cached += m.Value
		}
		return prepared{
			target: file, root: "dropping caches",
			plan: Plan{
				Bytes: int64(cached),
				Does:  []string{"write dirty pages to the disks (sync)", "write 3 to " + file},
				Gain:  "frees up to " + size(int64(cached)) + " of memory; dying groups with unused pages are released",
				Risk:  "drops the host's whole page cache: all processes read from the disks again, for minutes. The cures memcg, pinned and dentries affect less. This cure is bounded neither in bytes nor in time",
			},
			measure: measure,
			do: func(ctx context.Context) (result, error) {
				var r result
				if err := syncAll(ctx); err != nil {
					return r, err
				}
				err := kfile.WriteUntil(ctx, file, "3")
				if errors.Is(err, kfile.ErrStuck) { // only a fatal signal would interrupt it
					r.notes, err = append(r.notes, "the kernel continues the reclaim"), nil
				}
				return r, err
			},
		}, nil
	}}
}

func readMeminfo(proc string) ([]Measure, error) {
	b, err := kfile.Read(proc+"/meminfo", 64<<10)
	if err != nil {
		return nil, err
	}
	var ms []Measure
	for line := range strings.Lines(string(b)) {
		var name string
		var kb float64
		if _, err := fmt.Sscan(line, &name, &kb); err != nil {
			continue
		}
		switch name {
		case "Cached:":
			ms = append(ms, Measure{"page cache", "B", kb * 1024})
		case "SReclaimable:":
			ms = append(ms, Measure{"slab that can be reclaimed", "B", kb * 1024})
		}
	}
	return ms, nil
}
