package probe

import (
	"os"
	"strings"
	"testing"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/diskdir"
	"holdfast/internal/platform/linux/proc"
	"holdfast/test/poll"
)

// The file system of a directory is found, and its use grows with a file, also a deleted one.
// Bytes and inodes are counted only while it fills.
func TestFilling(t *testing.T) {
	groups, err := cgroup.Find(proc.Host)
	if err != nil {
		t.Fatal(err)
	}
	h := Host{Proc: proc.Host, Groups: groups}
	disks, err := fileSystems(h)
	if err != nil || len(disks) == 0 {
		t.Fatalf("%v, %v", disks, err)
	}
	for device, point := range disks {
		if used := usedSpace(disks); used[device+amountBytes] >= 0 {
			t.Errorf("%s at %s: %v", device, point, used)
		}
	}

	f := &filling{host: h, disks: disks}
	begin := time.Now()
	f.count(sampledAt(begin, "8:1"+amountBytes, -1<<40, -1<<40+1, -1<<40+2))
	if !f.counted.IsZero() {
		t.Error("writers are counted, though the file system is full in years")
	}
	f.count(sampledAt(begin, "8:1"+amountBytes, -1<<30, -1<<30+1<<20, -1<<30+2<<20))
	if f.counted.IsZero() {
		t.Fatal("writers are not counted")
	}
	file, err := os.CreateTemp(diskdir.Temp(), "holdfast-filling-")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := os.Remove(file.Name()); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "this process has written", func() bool {
		if _, err := file.Write(make([]byte, 4<<20)); err != nil {
			t.Fatal(err)
		}
		for _, w := range movers(f.host, fact.WrittenBy, f.before, written(f.host), time.Second) {
			if w.Name == fact.WrittenBy && w.Subject.Pid == os.Getpid() && w.Value >= 4<<20 {
				return true
			}
		}
		return false
	})
	if f.inodes != nil {
		if err := f.inodes.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The time in which the CPUs are full counts bursts, and names the group that uses over 30 % of them.
func TestSaturation(t *testing.T) {
	begin := time.Now()
	s := sampled{&sampler{take: func() map[string]float64 {
		return map[string]float64{timeAll: 8, timeBusy: 4.99, "/hog": 3.6, "/web": 1}
	}}, saturationFacts}
	s.cancel, s.done = func() {}, make(chan struct{})
	close(s.done)
	for i, of := range []map[string]float64{
		{timeAll: 0, timeBusy: 0, "/hog": 0, "/web": 0},
		{timeAll: 2, timeBusy: 1.99, "/hog": 1.8, "/web": 0.1},
		{timeAll: 4, timeBusy: 3, "/hog": 1.8, "/web": 0.9},
		{timeAll: 6, timeBusy: 4.98, "/hog": 3.5, "/web": 1},
	} {
		s.samples = append(s.samples, levels{begin.Add(time.Duration(i) * time.Second), of})
	}
	fs, err := s.Read(t.Context(), begin.Add(4*time.Second))
	if got := strings.TrimSpace(lines(fs)); err != nil || got != "cpu.full 0.5 share\ngroup.cpu_bursts /hog 2\ngroup.cpu_full /hog 0.5 share" {
		t.Errorf("%v\n%s", err, got)
	}
}
