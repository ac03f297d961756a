package rule

import "holdfast/internal/doctor/fact"

const (
	diskTimes   = 5    // as long as on a healthy host
	manyFlushes = 100  // /s
	flushBusy   = 0.50 // of the look
	writerShare = 0.50 // of all writes
)

// slowDisk is a disk that somebody keeps so busy that others wait: by many small
// writes, each of them flushed, or by much longer requests than are usual there.
func slowDisk() Rule {
	return Rule{
		Name:      "slow-disk",
		Signal:    "flushes and busy time of each disk (diskstats), writes of each container (io.stat, blkio), p99 of the requests (block_rq_issue, block_rq_complete)",
		Threshold: "over 100 flushes/s with the disk busy over 50 % of the time and one container doing over half of the writes; or p99 over 5 times the baseline",
		Why:       "a flush makes everybody behind it wait for the disk's cache, and on a journalling file system for each other's data",
		Source:    "Documentation/block/writeback_cache_control.rst; docs/doctor.md. The thresholds are judgements",
		Needs:     []string{fact.DiskFlush, fact.DiskBusy},
		Later:     "with the baselines: p99 beside what is usual here",
		Judge: func(s *fact.Set) []Finding {
			var found []Finding
			writers := s.Of(fact.GroupWrites)
			all := 0.0
			for _, w := range writers {
				all += w.Value
			}
			for _, f := range s.Of(fact.DiskFlush) {
				disk := f.Subject.Device
				busy, _ := s.Device(fact.DiskBusy, disk)
				if f.Value < manyFlushes || busy < flushBusy || len(writers) == 0 || writers[0].Value < writerShare*all || writers[0].Value < manyFlushes/2 {
					continue
				}
				e := []Evidence{
					{"flushes of " + disk, perSecond(f.Value), "under 100/s"},
					{"it is busy, of the time", percent(busy), "under 50 %"},
					{"writes of the group named", perSecond(writers[0].Value), "-"},
				}
				if p99, ok := s.Host(fact.DiskP99); ok {
					e = append(e, Evidence{"a request's time, p99", millis(p99), "-"})
				}
				found = append(found, Finding{
					Severity: Warning,
					Title:    "a container flushes many small writes, and everybody's writes wait for it",
					Evidence: e,
					Culprit:  writers[0].Subject,
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
