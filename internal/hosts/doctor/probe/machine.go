package probe

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/diskdir"
	"holdfast/internal/platform/linux/threads"
)

// Machine tests the raw machine briefly: one thread's CPU and memory, and small writes to the
// disk and reads from it. It shows whether these are fine. A test uses about 0.1 s of CPU time.
func Machine() Probe {
	return Probe{
		Name: "machine", Sees: "whether CPU, memory and disk of the machine are fast enough", Busy: true,
		Gives: []string{fact.CheckCPU, fact.CheckMem, fact.CheckDisk, fact.CheckRead},
		Open:  moment(testMachine),
	}
}

func testMachine(_ context.Context, h Host) ([]fact.Fact, error) {
	fs := []fact.Fact{host(fact.CheckCPU, tryCPU(), fact.MiBPerSec), host(fact.CheckMem, tryMemory(), fact.MiBPerSec)}
	dir := cmp.Or(h.Scratch, diskdir.Temp())
	if inMemory, err := diskdir.InMemory(dir); err != nil {
		return fs, fmt.Errorf("test the disk: %w", err)
	} else if inMemory {
		return fs, fmt.Errorf("test the disk: the files of %s are in memory", dir)
	}
	sync, err := trySync(dir)
	if err != nil {
		return fs, err
	}
	fs = append(fs, host(fact.CheckDisk, ms(sync), fact.Millis))
	read, err := tryRead(dir)
	if errors.Is(err, unix.EINVAL) { // the file system has no O_DIRECT
		return fs, nil
	}
	if err != nil {
		return fs, err
	}
	return append(fs, host(fact.CheckRead, ms(read), fact.Millis)), nil
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
	for i := range from {                                  // otherwise the kernel maps one page of zeros to all of it
		from[i] = byte(i)
	}
	copy(to, from) // the first access to the pages is not measured
	return throughput(len(from), func() { copy(to, from) })
}

// syncs is the number of small writes.
const syncs = 16

func trySync(dir string) (time.Duration, error) {
	f, err := scratch(dir)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	block := make([]byte, 4096)
	return median(syncs, func() error {
		if _, err := f.Write(block); err != nil {
			return err
		}
		return unix.Fdatasync(int(f.Fd()))
	})
}

// scratch returns a file without a name: it is gone when the process ends, in every case.
func scratch(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, "holdfast-doctor-")
	if err != nil {
		return nil, fmt.Errorf("test the disk: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(fmt.Errorf("test the disk: %w", err), f.Close())
	}
	return f, nil
}

// The test of reads. Most disks read ahead at most 128 KiB, so few of the blocks are near one
// that was read before.
const (
	reads    = 64
	readFrom = 8 << 20 // bytes
	readSize = 4096
)

// tryRead reads blocks of a new file in random order, past the page cache. It returns EINVAL on
// a file system without O_DIRECT.
func tryRead(dir string) (time.Duration, error) {
	f, err := scratch(dir)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	// O_DIRECT needs aligned memory, which a mapping is (open(2)).
	block, err := unix.Mmap(-1, 0, readFrom, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return 0, fmt.Errorf("test the disk: mmap: %w", err)
	}
	defer func() { _ = unix.Munmap(block) }()
	if _, err := f.Write(block); err != nil {
		return 0, fmt.Errorf("test the disk: %w", err)
	}
	if err := unix.Fdatasync(int(f.Fd())); err != nil {
		return 0, fmt.Errorf("test the disk: fdatasync: %w", err)
	}
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_SETFL, flags|unix.O_DIRECT)
	}
	if err != nil {
		return 0, fmt.Errorf("test the disk: O_DIRECT: %w", err)
	}
	return median(reads, func() error {
		_, err := f.ReadAt(block[:readSize], rand.Int64N(readFrom/readSize)*readSize)
		return err
	})
}

// median returns the median time of some operations on the disk, fewer if they take over 3 s.
func median(times int, do func() error) (time.Duration, error) {
	var took []time.Duration
	for begin := time.Now(); len(took) < times && time.Since(begin) < 3*time.Second; {
		t := time.Now()
		if err := do(); err != nil {
			return 0, fmt.Errorf("test the disk: %w", err)
		}
		took = append(took, time.Since(t))
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}
