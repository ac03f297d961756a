package cure

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"holdfast/internal/platform/linux/kfile"
)

// DropCaches is the blunt one: it drops the page cache, the directory entries and
// the inodes of everybody. Nothing in Holdfast does that by itself.
func DropCaches() Cure {
	return Cure{Name: "drop-caches", prepare: func(_ context.Context, e Env, o Options) (act, error) {
		file := filepath.Join(string(e.Host.Proc), "sys/vm/drop_caches")
		measure := func(context.Context) ([]Measure, error) { return readMeminfo(string(e.Host.Proc)) }
		now, err := measure(context.Background())
		if err != nil {
			return act{}, err
		}
		cached := 0.0
		for _, m := range now {
			cached += m.Value
		}
		if o.Apply && os.Geteuid() != 0 {
			return act{}, notRoot("dropping caches")
		}
		return act{
			target: file,
			plan: Plan{
				Bytes: int64(cached),
				Does:  []string{"write dirty pages to the disks (sync)", "write 3 to " + file},
				Gain:  "up to " + size(int64(cached)) + " of memory; dying groups whose pages nobody uses can go",
				Risk:  "all of the host's page cache: everybody reads from the disks again, for minutes. The gentle ones are memcg, pinned and dentries. It is bounded neither in bytes nor in time",
			},
			measure: measure,
			do: func(ctx context.Context) (result, error) {
				var r result
				if err := syncAll(ctx); err != nil {
					return r, err
				}
				err := kfile.WriteUntil(ctx, file, "3")
				if errors.Is(err, kfile.ErrStuck) { // only a deadly signal would break it off
					r.notes, err = append(r.notes, "the kernel goes on with it"), nil
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
