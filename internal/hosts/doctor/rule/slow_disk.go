package rule

import (
	"strings"

	"holdfast/internal/hosts/doctor/fact"
)

const (
	diskTimes   = 5    // as long as on a healthy host
	manyFlushes = 100  // /s
	flushBusy   = 0.40 // of the look
	writerShare = 0.50 // of all writes
	// flushStorm is from how many a second on it counts however busy the disk
	// is: what a program that groups its commits never needs.
	flushStorm = 2000
)

// slowDisk is a disk that somebody keeps so busy that others wait: by many small
// writes, each of them flushed, or by much longer requests than are usual there.
func slowDisk() Rule {
	return Rule{
		Name:      "slow-disk",
		Signal:    "flushes and busy time of each disk (diskstats), who hands writes and flushes to it (block_rq_issue; else io.stat, blkio), p99 of the requests (block_rq_issue, block_rq_complete)",
		Threshold: "over 100 flushes/s with the disk busy over 40 % of the time, or over 2,000/s, and one process or container making over half of the writes; or p99 over 5 times the baseline",
		Why:       "a flush makes everybody behind it wait for the disk's cache, and on a journalling file system for each other's data. Reads are not counted: who reads much beside somebody else's flushes has nothing to do with them",
		Source:    "Documentation/block/writeback_cache_control.rst; docs/doctor.md. The thresholds are judgements",
		Needs:     []string{fact.DiskFlush, fact.DiskBusy},
		Judge: func(s *fact.Set) []Finding {
			var found []Finding
			writer, rate, all := topWriter(s)
			for _, f := range s.Of(fact.DiskFlush) {
				disk := f.Subject.Device
				busy, _ := s.Device(fact.DiskBusy, disk)
				if f.Value < manyFlushes || busy < flushBusy && f.Value < flushStorm || all > 0 && (rate < writerShare*all || rate < manyFlushes/2) {
					continue
				}
				e := []Evidence{
					{"flushes of " + disk, perSecond(f.Value), "under 100/s"},
					{"it is busy, of the time", percent(busy), "under 40 %"},
					{"writes and flushes of the one named", perSecond(rate), "-"},
				}
				if p99, ok := s.Host(fact.DiskP99); ok {
					e = append(e, Evidence{"a request's time, p99", millis(p99), "-"})
				}
				title := "a container flushes many small writes, and everybody's writes wait for it"
				if all == 0 { // neither BPF nor the groups tell who it is
					title = "somebody flushes many small writes, and everybody's writes wait for it"
				}
				found = append(found, Finding{
					Severity: Warning,
					Title:    title,
					Evidence: e,
					Culprit:  writer,
					Cures: []Cure{
						{What: "Let it write several records for each fsync (group commit, if it is a database)."},
						{What: "Bound what it writes.", Command: "docker run --device-write-iops /dev/" + disk + ":100 …"},
					},
				})
			}
			p99, ok1 := s.Host(fact.DiskP99)
			base, ok2 := s.Host(fact.BaseDisk)
			if ok1 && ok2 && base > 0 && p99 > diskTimes*base {
				found = append(found, Finding{
					Severity: Warning,
					Title:    "the disks take much longer than they usually do",
					Evidence: []Evidence{{"a request's time, p99", millis(p99), millis(base)}},
					Cures:    []Cure{{What: "See who writes.", Command: "iotop -obn 3"}},
				})
			}
			return found
		},
	}
}

// topWriter is who hands most requests to the disks, and how many all do. On v1
// the groups' own counters know nothing of what is written behind a program's back,
// so that processes come first.
func topWriter(s *fact.Set) (who fact.Subject, rate, all float64) {
	var of []fact.Fact
	for _, f := range s.Of(fact.DiskBy) {
		if !kernelThread(f.Subject.Command) { // they write for others
			of = append(of, f)
		}
	}
	if len(of) == 0 {
		of = s.Of(fact.GroupWrites)
	}
	for _, f := range of {
		all += f.Value
	}
	who, rate = worst(of)
	return who, rate, all
}

func kernelThread(command string) bool {
	for _, p := range []string{"jbd2/", "kworker/", "xfsaild", "btrfs-", "loop", "kswapd", "ksoftirqd", "swapper"} {
		if strings.HasPrefix(command, p) {
			return true
		}
	}
	return false
}
