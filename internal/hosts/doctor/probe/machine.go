package probe

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/threads"
)

// machineProbe tests the raw machine briefly: one thread's CPU and memory, and small
// writes to the disk. It shows whether these are fine.
func machineProbe() Probe {
	return Probe{
		Name: "machine", Sees: "whether CPU, memory and disk of the machine are fast enough", Busy: true,
		Gives: []string{fact.CheckCPU, fact.CheckMem, fact.CheckDisk},
		Open:  moment(testMachine),
	}
}

func testMachine(_ context.Context, h Host) ([]fact.Fact, error) {
	fs := []fact.Fact{host(fact.CheckCPU, tryCPU(), fact.MiBPerSec), host(fact.CheckMem, tryMemory(), fact.MiBPerSec)}
	sync, err := trySync(h.Scratch)
	if err != nil {
		return fs, err
	}
	return append(fs, host(fact.CheckDisk, ms(sync), fact.Millis)), nil
}

// tryFor is the duration of the tests of CPU and memory, each.
const tryFor = 30 * time.Millisecond

// throughput returns the MiB per second of this thread's CPU time that work processes.
// Other load takes wall time but not this thread's CPU time.
func throughput(size int, work func()) float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begin, done := threads.CPUTime(), 0
	for limit := time.Now().Add(time.Second); threads.CPUTime()-begin < tryFor && time.Now().Before(limit); {
		work()
		done += size
	}
	return float64(done) / (1 << 20) / (threads.CPUTime() - begin).Seconds()
}

func tryCPU() float64 {
	block := make([]byte, 64<<10)
	return throughput(len(block), func() {
		sum := sha256.Sum256(block)
		block[0] = sum[0] // so that the compiler keeps the work
	})
}

func tryMemory() float64 {
	from, to := make([]byte, 16<<20), make([]byte, 16<<20) // larger than most caches of a core
	copy(to, from)                                         // the first access to the pages is not measured
	return throughput(len(from), func() { copy(to, from) })
}

// syncs is the number of small writes.
const syncs = 16

func trySync(dir string) (time.Duration, error) {
	f, err := os.CreateTemp(dir, "holdfast-doctor-")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if err := os.Remove(f.Name()); err != nil { // the open file is removed when the process ends, in every case
		return 0, err
	}
	var took []time.Duration
	block := make([]byte, 4096)
	for begin := time.Now(); len(took) < syncs && time.Since(begin) < 3*time.Second; {
		t := time.Now()
		if _, err := f.Write(block); err != nil {
			return 0, fmt.Errorf("test the disk: %w", err)
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return 0, fmt.Errorf("test the disk: fdatasync: %w", err)
		}
		took = append(took, time.Since(t))
	}
	if len(took) == 0 {
		return 0, errors.New("test the disk: no write completed in time")
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}
