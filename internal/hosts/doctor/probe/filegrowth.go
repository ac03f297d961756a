package probe

import (
	"context"
	"os"
	"strconv"
	"time"

	"holdfast/internal/hosts/doctor/fact"
)

// fileGrowthProbe counts the open files and the mappings of processes at both ends of an examination.
// It finds programs that are, or will soon be, at their limit.
func fileGrowthProbe() Probe {
	return Probe{
		Name: "file growth", Sees: "programs whose open files or mappings grow towards their limit, or whose mappings are at it",
		Gives: []string{fact.FilesGrown, fact.FilesGrowth, fact.MapsGrown, fact.MapsGrowth, fact.ProcessMaps},
		Open:  counted(countHeld, heldGrowth),
	}
}

const (
	// grownFiles is the growth of a process's open files from which its limit is read.
	grownFiles = 50
	// mapsFrom is the share of vm.max_map_count from which a process's mappings are compared.
	mapsFrom = 0.25
)

// numbersHeld has the number of open files of each process, and the share of vm.max_map_count of
// those with many mappings.
type numbersHeld struct{ files, maps map[int]float64 }

func countHeld(ctx context.Context, h Host) (n numbersHeld, err error) {
	if n.files, err = countFiles(ctx, h); err == nil {
		n.maps = mappings(ctx, h, mapsFrom)
	}
	return n, err
}

func heldGrowth(h Host, before, after numbersHeld, over time.Duration) ([]fact.Fact, error) {
	fs := append(fileGrowth(h, before.files, after.files, over), mappingsShares(h, after.maps)...)
	for pid, n := range after.maps {
		if was, known := before.maps[pid]; known && n > was {
			s := processOf(h, pid)
			fs = append(fs,
				fact.Fact{Name: fact.MapsGrown, Value: n, Unit: fact.Share, Subject: s},
				fact.Fact{Name: fact.MapsGrowth, Value: (n - was) / over.Seconds(), Unit: fact.PerSecond, Subject: s})
		}
	}
	return fs, nil
}

func countFiles(ctx context.Context, h Host) (map[int]float64, error) {
	pids, err := h.Proc.Pids()
	if err != nil {
		return nil, err
	}
	files := make(map[int]float64)
	for _, pid := range pids {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		files[pid] = descriptors(string(h.Proc) + "/" + strconv.Itoa(pid) + "/fd")
	}
	return files, nil
}

// descriptors counts the files of a directory of proc_pid_fd(5), at most maxOpen where the kernel does
// not tell their number as its size (Linux 6.2). Of a process that has ended there are none.
func descriptors(dir string) float64 {
	info, err := os.Stat(dir)
	if err != nil {
		return 0
	}
	if info.Size() > 0 {
		return float64(info.Size())
	}
	d, err := os.Open(dir)
	if err != nil {
		return 0
	}
	defer d.Close()
	names, _ := d.Readdirnames(maxOpen)
	return float64(len(names))
}

func fileGrowth(h Host, before, after map[int]float64, over time.Duration) (fs []fact.Fact) {
	for pid, n := range after {
		was, known := before[pid]
		if !known || n-was < grownFiles {
			continue
		}
		limit, ok := softLimit(h, pid, "Max open files")
		if !ok {
			continue
		}
		s := processOf(h, pid)
		fs = append(fs,
			fact.Fact{Name: fact.FilesGrown, Value: n / limit, Unit: fact.Share, Subject: s},
			fact.Fact{Name: fact.FilesGrowth, Value: (n - was) / limit / over.Seconds(), Unit: fact.PerSecond, Subject: s})
	}
	return fs
}
