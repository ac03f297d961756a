package rule

import (
	"fmt"
	"strings"

	"holdfast/internal/hosts/doctor/fact"
)

const (
	diskTimes   = 5    // multiple of the value on a healthy host
	manyFlushes = 100  // /s
	flushBusy   = 0.40 // share of the examination
	// slowFlushes is the rate of flushes per second that counts if they take flushBusy of the
	// time: a rotating disk ends 60 to 120 flushes per second.
	slowFlushes = 20
	writerShare = 0.50 // share of all writes
	// manyQueued is the mean of requests outstanding on a busy disk from which requests queue.
	// movedShare is the share of all bytes.
	manyQueued = 2
	movedShare = 0.50
	// smallRequest is the largest request in bytes that counts as small, if the disk accepts one of
	// requestRatio times its size. The kernel's default is 1,280 KiB or more, or what the disk accepts.
	smallRequest = 64 << 10
	requestRatio = 4
	// littleAhead is the read-ahead in bytes that counts as none if the disk makes manyReads per second
	// and their mean is not larger. The kernel's default is 128 KiB.
	littleAhead = 16 << 10
	manyReads   = 500
	// flushStorm is the rate of flushes per second that counts however busy the disk is.
	// A program with group commit never reaches it.
	flushStorm = 2000
)

// slowDisk finds a disk that one process keeps so busy that others wait: with many small
// flushed writes, or with requests that take much longer than on a healthy host.
func slowDisk() Rule {
	return Rule{
		Name:      "slow-disk",
		Signal:    "flushes and busy time of each disk (diskstats), the sender of writes and flushes (block_rq_issue, or else io.stat and blkio), p99 of the requests (block_rq_issue, block_rq_complete); and if a disk is busy all the time or has a deep queue, what each group reads and writes in half a second (/proc/PID/io); the largest request that a disk's settings allow (max_sectors_kb), and its read-ahead (read_ahead_kb)",
		Threshold: "over 100 flushes/s with the disk busy for over 40 % of the time, over 20 flushes/s that take over 40 % of the time, or over 2,000 flushes/s, and one process or container makes over half of the writes; or p99 over 5 times the baseline. Or one container moves over half of the bytes, and a disk is busy for over 90 % of the time with 2 requests outstanding on average, or has 8 outstanding. That is a notice, and a warning if a container waits for disks. Or the settings of a disk allow requests of at most 64 KiB and its hardware four times as much. Or its read-ahead is at most 16 KiB and it makes 500 reads/s of that size or smaller",
		Why:       "requests behind a flush wait until the disk's cache is written, and on a journalling file system also for the data of other writers. For this, reads are not counted: a process that reads much while another one flushes is not the cause. On a disk that one container keeps busy with many requests, any other request waits behind them",
		Source:    "Documentation/block/writeback_cache_control.rst; docs/doctor.md. The thresholds are judgements",
		Needs:     []string{fact.DiskFlush, fact.DiskBusy},
		Judge: func(s *fact.Set) []Finding {
			var found []Finding
			writer, rate, all := topWriter(s)
			for _, f := range s.Of(fact.DiskFlush) {
				disk := f.Subject.Device
				busy, _ := s.Device(fact.DiskBusy, disk)
				flushing, _ := s.Device(fact.DiskFlushing, disk)
				if !stormOfFlushes(f.Value, busy, flushing) || all > 0 && (rate < writerShare*all || rate < min(f.Value, manyFlushes)/2) {
					continue
				}
				e := []Evidence{
					{"flushes of " + disk, perSecond(f.Value), "under 100/s, or 20/s if they are slow"},
					{"disk busy, share of the time", percent(busy), "under 40 %"},
					{"a flush outstanding, share of the time", percent(flushing), "under 40 %"},
					{"writes and flushes of the named subject", perSecond(rate), "-"},
				}
				if p99, ok := s.Host(fact.DiskP99); ok {
					e = append(e, Evidence{"duration of a request, p99", millis(p99), "-"})
				}
				title := "a container flushes many small writes, and all other writes wait for them"
				if all == 0 { // neither BPF nor the groups' counters identify the writer
					title = "an unknown process flushes many small writes, and all other writes wait for them"
				}
				found = append(found, Finding{
					Severity: Warning,
					Title:    title,
					Evidence: e,
					Culprit:  writer,
					Cures: []Cure{
						{What: "Let the program write several records for each fsync (group commit, if it is a database)."},
						{What: "Limit its writes.", Command: "docker run --device-write-iops /dev/" + disk + ":100 …"},
					},
				})
			}
			if len(found) == 0 {
				found = saturatedDisk(s)
			}
			found = append(found, smallRequests(s)...)
			found = append(found, littleReadAhead(s)...)
			p99, ok1 := s.Host(fact.DiskP99)
			base, ok2 := s.Host(fact.BaseDisk)
			if ok1 && ok2 && base > 0 && p99 > diskTimes*base {
				found = append(found, Finding{
					Severity: Warning,
					Title:    "the disks take much longer than on a healthy host",
					Evidence: []Evidence{{"duration of a request, p99", millis(p99), millis(base)}},
					Cures:    []Cure{{What: "List the processes that write.", Command: "iotop -obn 3"}},
				})
			}
			return found
		},
	}
}

// saturatedDisk finds a container that keeps a disk busy with reads or large writes.
func saturatedDisk(s *fact.Set) []Finding {
	use := s.Of(fact.DiskUse)
	if len(use) == 0 {
		return nil
	}
	most, all := use[0], total(use)
	for _, f := range s.Of(fact.DiskQueue) {
		busy, _ := s.Device(fact.DiskBusy, f.Subject.Device)
		if f.Value < fact.DeepQueue && (busy < fact.BusyDisk || f.Value < manyQueued) || most.Value <= movedShare*all {
			continue
		}
		waits := victims(s, most.Subject.Cgroup, blocked(s))
		return []Finding{{
			Severity: byHarm(waits),
			Title:    "a container keeps a disk busy; requests of others wait behind its own",
			Evidence: []Evidence{
				{"disk " + f.Subject.Device + " busy, share of the time", percent(busy), "under 90 %"},
				{"requests outstanding, on average", fmt.Sprintf("%.1f", f.Value), "under 2"},
				{"data that the container named reads and writes", bytes(most.Value) + "/s of " + bytes(all) + "/s", "-"},
			},
			Culprit: most.Subject,
			Victims: waits,
			Cures: []Cure{
				{What: "Limit its rate.", Command: "docker run --device-read-bps /dev/" + f.Subject.Device + ":100mb --device-write-bps /dev/" + f.Subject.Device + ":100mb …"},
				{What: "Run backups and scans when the load is low, with ionice(1) where the disk's scheduler supports it."},
			},
		}}
	}
	return nil
}

// smallRequests finds disks whose settings make the kernel split each large request.
func smallRequests(s *fact.Set) (found []Finding) {
	for _, f := range s.Of(fact.DiskRequest) {
		disk := f.Subject.Device
		most, _ := s.Device(fact.DiskRequestMax, disk)
		if f.Value > smallRequest || most < requestRatio*f.Value {
			continue
		}
		busy, _ := s.Device(fact.DiskBusy, disk)
		waits := victims(s, "", blocked(s))
		found = append(found, Finding{
			Severity: byHarm(waits), Title: "a setting of the disk makes the kernel split each large request into small ones",
			Evidence: []Evidence{
				{"largest request of " + disk + ", max_sectors_kb", bytes(f.Value), "over 64 KiB"},
				{"disk busy, share of the time", percent(busy), "-"},
			},
			Victims: waits,
			Cures:   []Cure{{What: "Raise the setting, and find the udev rule or the script that lowers it.", Command: fmt.Sprintf("echo %.0f >/sys/block/%s/queue/max_sectors_kb", min(most, 1280<<10)/1024, disk)}},
		})
	}
	return found
}

// littleReadAhead finds disks whose settings make a program that reads a file in order wait for each page.
func littleReadAhead(s *fact.Set) (found []Finding) {
	for _, f := range s.Of(fact.DiskReadAhead) {
		disk := f.Subject.Device
		reads, _ := s.Device(fact.DiskReads, disk)
		size, known := s.Device(fact.DiskReadSize, disk)
		if f.Value > littleAhead || reads < manyReads || !known || size > max(f.Value, 4<<10) {
			continue
		}
		waits := victims(s, "", blocked(s))
		found = append(found, Finding{
			Severity: byHarm(waits), Title: "the disk hardly reads ahead: a program that reads a file in order waits for each small read",
			Evidence: []Evidence{
				{"read-ahead of " + disk + ", read_ahead_kb", bytes(f.Value), "128 KiB, the kernel's default"},
				{"reads, and their mean size", fmt.Sprintf("%s, %s", perSecond(reads), bytes(size)), "-"},
			},
			Victims: waits,
			Cures:   []Cure{{What: "Raise the setting, unless all programs read at random places, and find the udev rule or the script that lowers it.", Command: "echo 128 >/sys/block/" + disk + "/queue/read_ahead_kb"}},
		})
	}
	return found
}

// stormOfFlushes reports whether a disk's flushes delay others' requests: their rate per second, and
// the shares of time for which the disk was busy and for which a flush was outstanding.
func stormOfFlushes(rate, busy, flushing float64) bool {
	return rate >= flushStorm || rate >= manyFlushes && busy >= flushBusy || rate >= slowFlushes && flushing >= flushBusy
}

// topWriter returns the process or group that sends most requests to the disks, its rate,
// and the rate of all. Processes come first: on v1 the groups' own counters omit
// writeback.
func topWriter(s *fact.Set) (writer fact.Subject, rate, all float64) {
	var of []fact.Fact
	for _, f := range s.Of(fact.DiskBy) {
		if !kernelThread(f.Subject.Command) { // kernel threads write on behalf of others
			of = append(of, f)
		}
	}
	if len(of) == 0 {
		of = s.Of(fact.GroupWrites)
	}
	writer, rate = worst(of)
	return writer, rate, total(of)
}

func kernelThread(command string) bool {
	for _, p := range []string{"jbd2/", "kworker/", "xfsaild", "btrfs-", "loop", "kswapd", "ksoftirqd", "swapper"} {
		if strings.HasPrefix(command, p) {
			return true
		}
	}
	return false
}
