package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/prometheus/procfs/blockdevice"

	"holdfast/internal/hosts/doctor/fact"
)

// diskProbe reads the disks' counters.
func diskProbe() Probe {
	return Probe{
		Name: "disk", Sees: "how busy the disks are and how long they take, flushes",
		Gives: []string{fact.DiskBusy, fact.DiskAwait, fact.DiskQueue, fact.DiskFlush, fact.DiskFlushing, fact.DiskRequest, fact.DiskRequestMax, fact.DiskReads, fact.DiskReadSize, fact.DiskReadAhead, fact.IOFull},
		Open:  counted(readDisks, diskFacts),
	}
}

// diskReading holds the counters of the disks by name, and the time for which all tasks
// waited for disks.
type diskReading struct {
	disks map[string]blockdevice.Diskstats
	waits sample
}

// flushFields is the number of fields of diskstats with flushes, since Linux 5.5
// (Documentation/admin-guide/iostats.rst).
const flushFields = 20

// readDisks reads the counters of whole disks. It leaves out partitions, and loop and
// memory disks, whose data is on other disks or in memory.
func readDisks(_ context.Context, h Host) (diskReading, error) {
	r := diskReading{disks: make(map[string]blockdevice.Diskstats), waits: make(sample)}
	fs, err := blockdevice.NewFS(string(h.Proc), h.Sys)
	if err != nil {
		return r, err
	}
	all, err := fs.ProcDiskstats()
	if err != nil {
		return r, fmt.Errorf("diskstats: %w", err)
	}
	for _, d := range all {
		if strings.HasPrefix(d.DeviceName, "loop") || strings.HasPrefix(d.DeviceName, "ram") || strings.HasPrefix(d.DeviceName, "zram") {
			continue
		}
		// A partition is a subdirectory of its disk's directory,
		// Documentation/ABI/stable/sysfs-block.
		if _, err := os.Stat(h.Sys + "/block/" + d.DeviceName); err == nil {
			r.disks[d.DeviceName] = d
		}
	}
	if len(r.disks) == 0 {
		return r, errors.New("no disk found")
	}
	r.waits.stall("full", "full", read, string(h.Proc)+"/pressure/io")
	return r, nil
}

// requestsFrom is the share of the time for which a disk is busy from which its settings are read.
const requestsFrom = 0.1

func diskFacts(h Host, before, after diskReading, over time.Duration) ([]fact.Fact, error) {
	var fs []fact.Fact
	for d, b := range after.disks {
		a, ok := before.disks[d]
		if !ok {
			continue
		}
		add := func(name string, v float64, u fact.Unit) {
			fs = append(fs, fact.Fact{Name: name, Value: v, Unit: u, Subject: fact.Subject{Device: d}})
		}
		busy := busyShare(a, b, over)
		add(fact.DiskBusy, busy, fact.Share)
		if busy >= requestsFrom {
			// KiB, Documentation/ABI/stable/sysfs-block. A disk without requests of its own has none.
			for file, name := range map[string]string{"max_sectors_kb": fact.DiskRequest, "max_hw_sectors_kb": fact.DiskRequestMax, "read_ahead_kb": fact.DiskReadAhead} {
				if v, err := number(h.Sys + "/block/" + d + "/queue/" + file); err == nil {
					add(name, v*1024, fact.Bytes)
				}
			}
			if n := grew(a.ReadIOs, b.ReadIOs); n > 0 {
				add(fact.DiskReads, n/over.Seconds(), fact.PerSecond)
				add(fact.DiskReadSize, grew(a.ReadSectors, b.ReadSectors)*512/n, fact.Bytes)
			}
		}
		add(fact.DiskQueue, queued(a, b, over), fact.Count)
		if n := grew(a.ReadIOs, b.ReadIOs) + grew(a.WriteIOs, b.WriteIOs); n > 0 {
			add(fact.DiskAwait, (grew(a.ReadTicks, b.ReadTicks)+grew(a.WriteTicks, b.WriteTicks))/n, fact.Millis)
		}
		if b.IoStatsCount >= flushFields {
			add(fact.DiskFlush, grew(a.FlushRequestsCompleted, b.FlushRequestsCompleted)/over.Seconds(), fact.PerSecond)
			add(fact.DiskFlushing, min(1, grew(a.TimeSpentFlushing, b.TimeSpentFlushing)/1e3/over.Seconds()), fact.Share)
		}
	}
	if v, ok := after.waits.grew(before.waits, "full"); ok {
		fs = append(fs, host(fact.IOFull, v/over.Seconds(), fact.Share))
	}
	return fs, nil
}

// busyShare returns the share of the time for which a disk had a request.
func busyShare(a, b blockdevice.Diskstats, over time.Duration) float64 {
	return min(1, grew(a.IOsTotalTicks, b.IOsTotalTicks)/1e3/over.Seconds())
}

// queued returns the mean of requests outstanding.
func queued(a, b blockdevice.Diskstats, over time.Duration) float64 {
	return grew(a.WeightedIOTicks, b.WeightedIOTicks) / 1e3 / over.Seconds()
}

// grew returns the growth of a counter, 0 if it went backwards.
func grew(before, after uint64) float64 { return float64(after - min(before, after)) }
