package probe

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"holdfast/internal/hosts/doctor/fact"
)

// diskProbe reads the disks' counters.
func diskProbe() Probe {
	return Probe{
		Name: "disk", Sees: "how busy the disks are and how long they take, flushes",
		Gives: []string{fact.DiskBusy, fact.DiskAwait, fact.DiskFlush, fact.IOFull},
		Start: func(_ context.Context, h Host) (Finish, error) {
			before, err := readDisks(h)
			if err != nil {
				return nil, err
			}
			stalled, known := ioStall(h)
			return func(_ context.Context, over time.Duration) ([]fact.Fact, error) {
				after, err := readDisks(h)
				if err != nil {
					return nil, err
				}
				fs := diskFacts(before, after, over)
				if now, ok := ioStall(h); ok && known {
					if v, ok := rate(stalled, now, over); ok {
						fs = append(fs, host(fact.IOFull, v, fact.Share))
					}
				}
				return fs, nil
			}, nil
		},
	}
}

func ioStall(h Host) (float64, bool) {
	text, err := read(string(h.Proc) + "/pressure/io")
	if err != nil {
		return 0, false
	}
	v, ok := pressure(text)["full"]
	return v, ok
}

// Columns of diskstats after the name, Documentation/admin-guide/iostats.rst.
const (
	diskReads     = 0
	diskReadMs    = 3
	diskWrites    = 4
	diskWriteMs   = 7
	diskBusyMs    = 9
	diskFlushes   = 15 // since Linux 5.5
	diskMinFields = 11
)

// readDisks reads the counters of whole disks. It leaves out partitions, and loop and
// memory disks, whose data is on other disks or in memory.
func readDisks(h Host) (map[string][]float64, error) {
	text, err := read(string(h.Proc) + "/diskstats")
	if err != nil {
		return nil, err
	}
	disks := make(map[string][]float64)
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 3+diskMinFields {
			return nil, fmt.Errorf("diskstats: unexpected format: %q", line)
		}
		name := f[2]
		if strings.HasPrefix(name, "loop") || strings.HasPrefix(name, "ram") || strings.HasPrefix(name, "zram") {
			continue
		}
		// A partition is a subdirectory of its disk's directory,
		// Documentation/ABI/stable/sysfs-block.
		if _, err := os.Stat(h.Sys + "/block/" + name); err != nil {
			continue
		}
		v, err := floats(strings.Join(f[3:], " "))
		if err != nil {
			return nil, fmt.Errorf("diskstats: %w", err)
		}
		disks[name] = v
	}
	if len(disks) == 0 {
		return nil, fmt.Errorf("no disk found")
	}
	return disks, nil
}

func diskFacts(before, after map[string][]float64, over time.Duration) []fact.Fact {
	var fs []fact.Fact
	for name, b := range after {
		a, ok := before[name]
		if !ok || len(a) != len(b) {
			continue
		}
		grew := func(column int) float64 { return max(0, b[column]-a[column]) }
		add := func(fname string, v float64, u fact.Unit) {
			fs = append(fs, fact.Fact{Name: fname, Value: v, Unit: u, Subject: fact.Subject{Device: name}})
		}
		add(fact.DiskBusy, min(1, grew(diskBusyMs)/1e3/over.Seconds()), fact.Share)
		if n := grew(diskReads) + grew(diskWrites); n > 0 {
			add(fact.DiskAwait, (grew(diskReadMs)+grew(diskWriteMs))/n, fact.Millis)
		}
		if len(b) > diskFlushes {
			add(fact.DiskFlush, grew(diskFlushes)/over.Seconds(), fact.PerSecond)
		}
	}
	return fs
}
