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
)

// machineProbe tries the raw machine for a moment: one thread's CPU and memory, and
// small writes to the disk. It is there to say that these are fine.
func machineProbe() Probe {
	return Probe{
		Name: "machine", Sees: "whether CPU, memory and disk of the machine are fine by themselves", Busy: true,
		Gives: []string{fact.CheckCPU, fact.CheckMem, fact.CheckDisk},
		Start: func(_ context.Context, h Host) (Finish, error) {
			cpu, mem := tryCPU(), tryMemory()
			sync, err := trySync(h.Scratch)
			return func(context.Context, time.Duration) ([]fact.Fact, error) {
				fs := []fact.Fact{host(fact.CheckCPU, cpu, fact.MiBPerSec), host(fact.CheckMem, mem, fact.MiBPerSec)}
				if err == nil {
					fs = append(fs, host(fact.CheckDisk, ms(sync), fact.Millis))
				}
				return fs, err
			}, nil
		},
	}
}

// tryFor is how long CPU and memory are tried, each.
const tryFor = 30 * time.Millisecond

// throughput is how many MiB a second of this thread's CPU time work gets done:
// other load takes wall time, but not that.
func throughput(size int, work func()) float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begin, done := threadTime(), 0
	for limit := time.Now().Add(time.Second); threadTime()-begin < tryFor && time.Now().Before(limit); {
		work()
		done += size
	}
	return float64(done) / (1 << 20) / (threadTime() - begin).Seconds()
}

func tryCPU() float64 {
	block := make([]byte, 64<<10)
	return throughput(len(block), func() {
		sum := sha256.Sum256(block)
		block[0] = sum[0] // so that it is not left out
	})
}

func tryMemory() float64 {
	from, to := make([]byte, 16<<20), make([]byte, 16<<20) // beyond most caches of a core
	copy(to, from)                                         // the first touch is not what is measured
	return throughput(len(from), func() { copy(to, from) })
}

// syncs is how many small writes are tried.
const syncs = 16

func trySync(dir string) (time.Duration, error) {
	f, err := os.CreateTemp(dir, "holdfast-doctor-")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if err := os.Remove(f.Name()); err != nil { // it goes with the process, however that ends
		return 0, err
	}
	var took []time.Duration
	block := make([]byte, 4096)
	for begin := time.Now(); len(took) < syncs && time.Since(begin) < 3*time.Second; {
		t := time.Now()
		if _, err := f.Write(block); err != nil {
			return 0, fmt.Errorf("try the disk: %w", err)
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return 0, fmt.Errorf("try the disk: fdatasync: %w", err)
		}
		took = append(took, time.Since(t))
	}
	if len(took) == 0 {
		return 0, errors.New("try the disk: no write ended in time")
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}
