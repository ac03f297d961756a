package probe

import (
	"context"
	"os"
	"strconv"
	"time"

	"holdfast/internal/hosts/doctor/fact"
)

// fileGrowthProbe counts the open files of all processes at both ends of an examination. It finds
// programs that will soon be at their limit.
func fileGrowthProbe() Probe {
	return Probe{
		Name: "file growth", Sees: "programs whose open files grow towards their limit",
		Gives: []string{fact.FilesGrown, fact.FilesGrowth},
		Open:  counted(countFiles, fileGrowth),
	}
}

// grownFiles is the growth of a process's open files from which its limit is read.
const grownFiles = 50

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

func fileGrowth(h Host, before, after map[int]float64, over time.Duration) (fs []fact.Fact, err error) {
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
	return fs, nil
}
