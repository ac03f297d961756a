package rule

import (
	"fmt"
	"strconv"
	"time"

	"holdfast/internal/hosts/doctor/fact"
)

const (
	fillsSoon   = 5 * time.Minute
	fillerShare = 0.50 // of the growth
)

// diskGrowth finds a file system that is being filled, with bytes or with files, and names the
// container that fills it.
func diskGrowth() Rule {
	return Rule{
		Name:      "disk-growth",
		Signal:    "free space and free inodes of each file system on a disk (statfs), once a second; while one fills, the bytes that processes write (/proc/PID/io) and the inodes that they allocate (tracepoint ext4_allocate_inode)",
		Threshold: "it shrank in each third of the time, and is used up within 3 hours at that rate; a warning within 5 minutes. The container that writes over half of it is named",
		Why:       "on a full disk every container and the engine fail. A large copy does the same for some minutes and is healthy, which is why a finding is only a notice until the end is near. Deleted files that a process holds open count, and du does not find them",
		Source:    "statfs(2); proc_pid_io(5). The thresholds are judgements",
		Needs:     []string{fact.DiskFree},
		Judge: func(s *fact.Set) []Finding {
			var found []Finding
			for _, of := range []filled{
				{fact.DiskFree, fact.DiskGrowth, fact.DiskGrowthLow, fact.WrittenBy, "disk space", bytes},
				{fact.DiskInodes, fact.InodeGrowth, fact.InodeGrowthLow, fact.InodesBy, "inodes", number},
			} {
				writer, rate := topGroup(s.Of(of.by))
				for _, f := range s.Of(of.grew) {
					if f, ok := of.judge(s, f, writer, rate); ok {
						found = append(found, f)
					}
				}
			}
			return found
		},
	}
}

// filled is what a file system can run out of, with the names of its facts.
type filled struct {
	free, grew, low, by string
	what                string
	amount              func(float64) string
}

// judge judges the growth of one file system. writer makes most of all growth, at the rate.
func (of filled) judge(s *fact.Set, grew fact.Fact, writer fact.Subject, rate float64) (Finding, bool) {
	point := grew.Subject.Device
	free, _ := s.Device(of.free, point)
	low, _ := s.Device(of.low, point)
	until := func(rate float64) time.Duration {
		return time.Duration(free / rate * float64(time.Second)).Round(time.Second)
	}
	at := until(grew.Value)
	if grew.Value <= 0 || low <= 0 || at > fact.FillsWithin {
		return Finding{}, false
	}
	f := Finding{
		Severity: Notice,
		Title:    fmt.Sprintf("at the present growth the %s of %s is used up in %v", of.what, point, at),
		Evidence: []Evidence{
			{"growth", of.amount(grew.Value) + "/s", "it shrinks as often as it grows"},
			{"free", of.amount(free), "-"},
			{"latest, by the slowest third of the time", until(low).String(), "-"},
		},
	}
	if at < fillsSoon {
		f.Severity = Warning
	}
	pid := "PID"
	if rate > fillerShare*grew.Value {
		f.Culprit = writer
		f.Evidence = append(f.Evidence, Evidence{"of it by the named subject", of.amount(rate) + "/s", "-"})
		if writer.Pid != 0 {
			pid = strconv.Itoa(writer.Pid)
		}
	}
	f.Cures = []Cure{
		{What: "Find out what it writes. Files that are deleted and still open are marked.", Command: "ls -l /proc/" + pid + "/fd"},
		{What: "Bound the log of a container that prints much.", Command: "docker run --log-opt max-size=10m …"},
		{What: "Remove images, containers and volumes that nothing uses.", Command: "holdfast gc run"},
	}
	return f, true
}

// topGroup returns the subject with the largest fact of the group whose facts have the largest
// sum, and the sum.
func topGroup(fs []fact.Fact) (top fact.Subject, most float64) {
	sums := make(map[string]float64)
	for _, f := range fs {
		sums[f.Subject.Cgroup] += f.Value
	}
	for _, f := range fs { // sorted, largest first
		if v := sums[f.Subject.Cgroup]; v > most {
			top, most = f.Subject, v
		}
	}
	return top, most
}
