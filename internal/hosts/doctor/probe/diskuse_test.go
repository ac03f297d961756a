package probe

import (
	"os"
	"testing"
	"time"

	"github.com/prometheus/procfs/blockdevice"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/diskdir"
)

// While a disk is busy, the process that writes is named with its rate, and otherwise nothing is read.
func TestDiskUse(t *testing.T) {
	h := (&fixture{t: t}).thisHost()
	f, err := os.CreateTemp(diskdir.Temp(), "holdfast-use-")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	end := time.Now().Add(3 * useBurst)
	go func() {
		defer close(ended)
		block := make([]byte, 1<<20)
		for time.Now().Before(end) {
			if _, err := f.WriteAt(block, 0); err != nil {
				t.Error(err)
				return
			}
			if err := f.Sync(); err != nil { // the next write then makes the page dirty again
				t.Error(err)
				return
			}
		}
	}()
	reading := func(ms uint64) diskReading {
		r := diskReading{disks: map[string]blockdevice.Diskstats{"vda": {}}}
		d := r.disks["vda"]
		d.IOsTotalTicks = ms
		r.disks["vda"] = d
		return r
	}
	if fs, err := useFacts(h, reading(0), reading(500), time.Second); err != nil || len(fs) != 0 {
		t.Errorf("a disk that is busy for half of the time: %+v, %v", fs, err)
	}
	queue := reading(500)
	d := queue.disks["vda"]
	d.WeightedIOTicks = fact.DeepQueue * 1000
	queue.disks["vda"] = d
	if fs, err := useFacts(h, reading(0), queue, time.Second); err != nil || len(fs) == 0 {
		t.Errorf("a disk with a deep queue: %+v, %v", fs, err)
	}
	fs, err := useFacts(h, reading(0), reading(950), time.Second)
	<-ended
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range fs {
		if x.Name == fact.DiskUse && x.Subject.Pid == os.Getpid() && x.Value >= 1<<20 {
			return
		}
	}
	t.Errorf("%+v, want this process", fs)
}

// The largest request that a disk's settings allow is a fact while the disk is busy.
func TestDiskRequests(t *testing.T) {
	h := Host{Sys: t.TempDir()}
	files(t, h.Sys, map[string]string{"block/vda/queue/max_sectors_kb": "8\n", "block/vda/queue/max_hw_sectors_kb": "1024\n", "block/vda/queue/read_ahead_kb": "4\n"})
	facts := func(ms uint64) *fact.Set {
		var d blockdevice.Diskstats
		d.IOsTotalTicks, d.ReadIOs, d.ReadSectors = ms, 600, 4800
		fs, err := diskFacts(h, diskReading{disks: map[string]blockdevice.Diskstats{"vda": {}, "vdb": {}}}, diskReading{disks: map[string]blockdevice.Diskstats{"vda": d, "vdb": d}}, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		set := &fact.Set{}
		set.Add(fs...)
		return set
	}
	if s := facts(50); s.Has(fact.DiskRequest) || s.Has(fact.DiskRequestMax) {
		t.Errorf("a disk at rest: %+v", s.Facts)
	}
	s := facts(500)
	is, _ := s.Device(fact.DiskRequest, "vda")
	most, _ := s.Device(fact.DiskRequestMax, "vda")
	ahead, _ := s.Device(fact.DiskReadAhead, "vda")
	reads, _ := s.Device(fact.DiskReads, "vda")
	size, _ := s.Device(fact.DiskReadSize, "vda")
	if ahead != 4<<10 || reads != 600 || size != 4<<10 {
		t.Errorf("a read-ahead of %v, %v reads/s of %v", ahead, reads, size)
	}
	if _, other := s.Device(fact.DiskRequest, "vdb"); is != 8<<10 || most != 1<<20 || other {
		t.Errorf("%+v", s.Facts)
	}
}
