package probe

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/tracepoint"
)

// fillingProbe measures how fast the file systems of the host's disks fill, by statfs(2). Only
// while one does, it counts what processes write (/proc/PID/io) and the files that they make
// (tracepoint ext4_allocate_inode; other file systems have no fixed number of inodes).
func fillingProbe() Probe {
	return Probe{
		Name: "filling", Sees: "file systems that will be full, and what fills them",
		Gives: []string{fact.DiskFree, fact.DiskInodes, fact.DiskGrowth, fact.DiskGrowthLow, fact.InodeGrowth, fact.InodeGrowthLow, fact.WrittenBy, fact.InodesBy},
		Open: func(ctx context.Context, h Host, now time.Time) (Series, error) {
			disks, err := fileSystems(h)
			if err != nil {
				return nil, err
			}
			f := &filling{host: h, disks: disks}
			f.samples = sampling(ctx, now, growthEvery, func() map[string]float64 { return usedSpace(disks) }, f.count)
			return f, nil
		},
	}
}

// onDisks are the file systems that can be full. Network file systems are not examined, since
// statfs waits for their servers.
func onDisks() []string {
	return []string{"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs"}
}

// fileSystems returns a mount point of each file system on a disk, by the device's number.
func fileSystems(h Host) (map[string]string, error) {
	mounts, err := parsed(h, func(fs procfs.FS) ([]*procfs.MountInfo, error) {
		self, err := fs.Self()
		if err != nil {
			return nil, err
		}
		return self.MountInfo()
	})
	disks := make(map[string]string)
	for _, m := range mounts {
		if _, twice := disks[m.MajorMinorVer]; !twice && slices.Contains(onDisks(), m.FSType) {
			disks[m.MajorMinorVer] = m.MountPoint
		}
	}
	return disks, err
}

// Amounts of a file system in a sample: its free bytes and inodes as negative numbers, so that an
// amount grows while the file system fills.
const (
	amountBytes  = " bytes"
	amountInodes = " inodes"
)

func usedSpace(disks map[string]string) map[string]float64 {
	used := make(map[string]float64)
	for device, point := range disks {
		var st unix.Statfs_t
		if unix.Statfs(point, &st) != nil {
			continue // it has been unmounted
		}
		used[device+amountBytes] = -float64(st.Bavail) * float64(st.Bsize)
		if st.Files > 0 { // btrfs has no limit
			used[device+amountInodes] = -float64(st.Ffree)
		}
	}
	return used
}

// filling is a Series that an examination reads once.
type filling struct {
	host    Host
	disks   map[string]string
	samples *sampler

	// Of the sampler's goroutine, until it has ended:

	counted time.Time       // since when writers are counted; the zero time: they are not
	before  map[int]account // what each process had written until then
	inodes  *tracepoint.Tally
	err     error
}

// count begins to count the writers as soon as a file system fills.
func (f *filling) count(samples []levels) {
	if !f.counted.IsZero() || len(samples) < 3 {
		return
	}
	first, last := samples[len(samples)-3], samples[len(samples)-1]
	over := last.at.Sub(first.at).Seconds()
	for name, used := range last.of {
		was, known := first.of[name]
		if rate := (used - was) / over; !known || rate <= 0 || -used/rate > fact.FillsWithin.Seconds() {
			continue
		}
		f.counted, f.before = last.at, written(f.host)
		f.inodes, f.err = tracepoint.CountEvent("ext4_allocate_inode", false)
		if errors.Is(f.err, tracepoint.ErrNoTracepoint) {
			f.err = nil // no ext4
		}
		return
	}
}

func (f *filling) Close() error {
	f.samples.close()
	if f.inodes == nil {
		return nil
	}
	return f.inodes.Close()
}

func (f *filling) Read(_ context.Context, now time.Time) ([]fact.Fact, error) {
	samples := f.samples.end(now)
	var fs []fact.Fact
	for device, point := range f.disks {
		for _, of := range []struct {
			amount, free, grew, low string
			unit                    fact.Unit
		}{
			{amountBytes, fact.DiskFree, fact.DiskGrowth, fact.DiskGrowthLow, fact.Bytes},
			{amountInodes, fact.DiskInodes, fact.InodeGrowth, fact.InodeGrowthLow, fact.Count},
		} {
			used, ok := samples[len(samples)-1].of[device+of.amount]
			if !ok {
				continue
			}
			add := func(name string, v float64) {
				fs = append(fs, fact.Fact{Name: name, Value: v, Unit: of.unit, Subject: fact.Subject{Device: point}})
			}
			add(of.free, -used)
			if g, ok := growthOf(samples, device+of.amount); ok && g.low > 0 {
				add(of.grew, g.mean)
				add(of.low, g.low)
			}
		}
	}
	if f.counted.IsZero() {
		return fs, nil
	}
	over := now.Sub(f.counted)
	fs = append(fs, movers(f.host, fact.WrittenBy, f.before, written(f.host), over)...)
	if f.inodes == nil || f.err != nil {
		return fs, traceError(f.err)
	}
	places, err := f.inodes.Take()
	return append(fs, byPlace(newResolver(f.host, nil), places, fact.InodesBy, over)...), err
}
