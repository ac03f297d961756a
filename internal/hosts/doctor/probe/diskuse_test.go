package probe

import (
	"bufio"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/procfs/blockdevice"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/diskdir"
	"holdfast/test/poll"
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
	stop, ended := make(chan struct{}), make(chan struct{})
	defer func() { close(stop); <-ended }()
	go func() {
		defer close(ended)
		block := make([]byte, 1<<20)
		for {
			select {
			case <-stop:
				return
			default:
			}
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
	// Another process of the same group may write more for a moment.
	poll.Until(t, "this process is named", func() bool {
		fs, err := useFacts(h, reading(0), reading(950), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(fs, func(x fact.Fact) bool {
			return x.Name == fact.DiskUse && x.Subject.Pid == os.Getpid() && x.Value >= 1<<20
		})
	})
}

// What a child has written before counts neither for it nor for the parent that waits for it.
func TestDiskUseOfAnEndedChild(t *testing.T) {
	const size = 32 << 20
	h := (&fixture{t: t}).thisHost()
	file := filepath.Join(diskdir.Temp(), "holdfast-use-"+strconv.Itoa(os.Getpid()))
	defer os.Remove(file)
	cmd := exec.Command("sh", "-c", `head -c "$0" /dev/zero >"$1"; echo written; read end`, strconv.Itoa(size), file)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(line, err)
	}
	before := moved(h)
	if n := before[cmd.Process.Pid].bytes; n < size {
		t.Fatalf("the child has written %g bytes", n)
	}
	in.Close()
	if err := cmd.Wait(); err == nil {
		t.Error("read has not failed at the end of its input")
	}
	after, self := moved(h), os.Getpid()
	if n := after[self].bytes - before[self].bytes; n < size {
		t.Errorf("the kernel counts %g bytes of the child", n)
	}
	if n := after[self].bytes - before[self].bytes - inherited(before, after)[self]; n >= size/2 {
		t.Errorf("%g bytes are left", n)
	}
	for _, x := range movers(h, fact.DiskUse, before, after, time.Second) {
		if x.Subject.Pid == self && x.Value >= size/2 {
			t.Errorf("%+v", x)
		}
	}
}

func TestInherited(t *testing.T) {
	before := map[int]account{1: {100, 0}, 10: {5, 1}, 11: {7, 10}, 12: {9, 11}, 20: {3, 1}, 30: {2, 2}, 31: {4, 30}}
	after := map[int]account{1: {130, 0}, 20: {3, 1}, 40: {8, 1}}
	want := map[int]float64{1: 5 + 7 + 9, 2: 2 + 4} // the parent of 30 is not known
	if got := inherited(before, after); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
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
