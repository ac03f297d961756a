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
	end := time.Now().Add(2 * useBurst)
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
