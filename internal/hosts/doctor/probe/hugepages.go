package probe

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"holdfast/internal/hosts/doctor/fact"
)

// hugepagesProbe reads how much CPU time khugepaged uses, which searches the memory of programs for
// places where it can build huge pages (admin-guide/mm/transhuge.rst), and its settings.
func hugepagesProbe() Probe {
	return Probe{
		Name: "hugepages", Sees: "huge pages that programs did not ask for, and the CPU time of khugepaged, which builds some",
		Gives: []string{fact.HugeSeen, fact.HugeCPU, fact.HugeScans, fact.HugeBuilt, fact.HugeAlways, fact.HugeFaults, fact.HugeSleep, fact.HugeBatch},
		Open: func(ctx context.Context, h Host, now time.Time) (Series, error) {
			return counted((&khugepaged{}).read, hugeFacts)(ctx, h, now)
		},
	}
}

// khugepaged is the kernel's thread. Its pid stays the same while huge pages are enabled.
type khugepaged struct{ pid int }

// read returns the CPU time of khugepaged in seconds, its passes over all memory, and the huge pages
// that it built; nothing while it does not run. In a pid namespace other than the first, the thread is
// not visible.
func (k *khugepaged) read(ctx context.Context, h Host) (sample, error) {
	dir := h.Sys + hugeDir
	if !hugeEnabled(dir) {
		return nil, nil
	}
	s := make(sample)
	s.single("scans", read, dir+"/khugepaged/full_scans")
	s.single("built", read, dir+"/khugepaged/pages_collapsed")
	const name = "khugepaged"
	if k.pid == 0 || !isKernelThread(h, k.pid, name) {
		var err error
		if k.pid, err = kernelThread(ctx, h, name); err != nil {
			return nil, err
		}
	}
	if k.pid > 0 {
		s.ran("cpu", h, k.pid)
	}
	if len(s) == 0 {
		return nil, errors.New("neither khugepaged nor the number of its passes is visible")
	}
	s.pick(read, string(h.Proc)+"/vmstat", map[string]string{"thp_fault_alloc": "faults"})
	return s, nil
}

const hugeDir = "/kernel/mm/transparent_hugepage"

// hugeEnabled reports whether huge pages are enabled, of all sizes or of one (Linux 6.8): "always
// [madvise] never". Otherwise khugepaged does not run.
func hugeEnabled(dir string) bool {
	enabled := func(file string) bool {
		text, err := read(file)
		return err == nil && (strings.Contains(text, "[always]") || strings.Contains(text, "[madvise]"))
	}
	if enabled(dir + "/enabled") {
		return true
	}
	sizes, _ := filepath.Glob(dir + "/hugepages-*/enabled") // the pattern is valid
	return slices.ContainsFunc(sizes, enabled)
}

func hugeFacts(h Host, before, after sample, over time.Duration) ([]fact.Fact, error) {
	fs := []fact.Fact{host(fact.HugeSeen, 1, fact.Count)}
	for _, x := range []struct {
		key, name string
		unit      fact.Unit
	}{{"cpu", fact.HugeCPU, fact.Share}, {"scans", fact.HugeScans, fact.PerSecond}, {"built", fact.HugeBuilt, fact.PerSecond}, {"faults", fact.HugeFaults, fact.PerSecond}} {
		if n, ok := after.grew(before, x.key); ok {
			fs = append(fs, host(x.name, n/over.Seconds(), x.unit))
		}
	}
	if len(after) == 0 {
		return fs, nil
	}
	if text, err := read(h.Sys + hugeDir + "/enabled"); err == nil && strings.Contains(text, "[always]") {
		fs = append(fs, host(fact.HugeAlways, 1, fact.Count))
	}
	dir := h.Sys + hugeDir + "/khugepaged"
	if sleep, err := number(dir + "/scan_sleep_millisecs"); err == nil {
		fs = append(fs, host(fact.HugeSleep, sleep, fact.Millis))
	}
	if batch, err := number(dir + "/pages_to_scan"); err == nil {
		fs = append(fs, host(fact.HugeBatch, batch, fact.Count))
	}
	return fs, nil
}
