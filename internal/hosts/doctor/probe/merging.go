package probe

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/hosts/doctor/fact"
)

// The share of one CPU that ksmd uses, and the number of pages that it compares each second, from
// which it is searched whose memory they are.
const (
	mergingFrom  = 0.05
	comparedFrom = 25_000
)

// mergingProbe reads how much CPU time ksmd uses, which merges equal pages of processes that offer
// them with MADV_MERGEABLE (admin-guide/mm/ksm.rst), and whose memory it compares.
func mergingProbe() Probe {
	return Probe{
		Name: "merging", Sees: "CPU time of ksmd, which merges pages",
		Gives: []string{fact.MergingSeen, fact.MergingCPU, fact.MergingScanned, fact.MergingBy},
		Open:  counted(readMerging, mergingFacts),
	}
}

// readMerging returns the CPU time of ksmd in seconds and the pages that it compared; nothing while
// it does not run, and in a kernel without it. In a pid namespace other than the first, ksmd is not
// visible.
func readMerging(ctx context.Context, h Host) (sample, error) {
	run, err := number(h.Sys + "/kernel/mm/ksm/run")
	if err != nil || run != 1 {
		return nil, nil
	}
	s := make(sample)
	s.single("scanned", read, h.Sys+"/kernel/mm/ksm/pages_scanned") // Linux 6.7
	pid, err := kernelThread(ctx, h, "ksmd")
	if err != nil {
		return nil, err
	}
	s.ran("cpu", h, pid)
	if len(s) == 0 {
		return nil, errors.New("neither ksmd nor the number of its pages is visible")
	}
	return s, ctx.Err()
}

func mergingFacts(h Host, before, after sample, over time.Duration) ([]fact.Fact, error) {
	fs := []fact.Fact{host(fact.MergingSeen, 1, fact.Count)}
	cpu, scanned := 0.0, 0.0
	if n, ok := after.grew(before, "cpu"); ok {
		cpu = n / over.Seconds()
		fs = append(fs, host(fact.MergingCPU, cpu, fact.Share))
	}
	if n, ok := after.grew(before, "scanned"); ok {
		scanned = n / over.Seconds()
		fs = append(fs, host(fact.MergingScanned, scanned, fact.PerSecond))
	}
	if cpu < mergingFrom && scanned < comparedFrom {
		return fs, nil
	}
	var by []fact.Fact
	pids, _ := h.Proc.Pids() // without a list no process is known
	for _, pid := range pids {
		if pages := offered(string(h.Proc) + "/" + strconv.Itoa(pid)); pages > 0 {
			by = append(by, fact.Fact{Name: fact.MergingBy, Value: pages * float64(os.Getpagesize()), Unit: fact.Bytes, Subject: processOf(h, pid)})
		}
	}
	return append(fs, largest(by, shownProcesses)...), nil
}

// offered returns the number of a process's pages that ksmd compares: ksm_rmap_items of
// /proc/pid/ksm_stat (Linux 6.1), or else those that it has merged (Linux 5.19).
func offered(dir string) float64 {
	if text, err := read(dir + "/ksm_stat"); err == nil {
		return numbers(text)["ksm_rmap_items"]
	}
	text, _ := read(dir + "/ksm_merging_pages") // none before
	n, _ := strconv.ParseFloat(strings.TrimSpace(text), 64)
	return n
}
