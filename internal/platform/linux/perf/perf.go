// Package perf samples all CPUs of a host by perf events (perf_event_open(2)): at a
// given rate, the stacks of the running threads in the kernel and in user space. It
// also records the programs and mappings of processes, which are needed to name the
// functions.
//
// The clock is the software event cpu-clock, a timer on each CPU, so that samples are
// time, and hosts with and without a hardware counter can be compared. While the
// kernel has interrupts disabled the timer waits: that time is attributed to the
// function that enables interrupts again. An idle CPU is not sampled.
//
// The kernel walks user stacks by frame pointers: of a program that was compiled without
// them only the innermost function is reliable. For those a sample can carry a copy of
// the stack, which package unwind walks.
package perf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/perf/unwind"
	"holdfast/internal/platform/linux/threads"
)

// ErrForbidden means that this process may not look at the whole host.
var ErrForbidden = errors.New("perf events of the whole host are not allowed")

// ErrUnsupported means that the kernel has no perf events, or is older than
// Linux 4.1.
var ErrUnsupported = errors.New("the kernel has no perf events")

// Bounds of the rate, in samples per second of a busy CPU. The kernel's limit
// (kernel.perf_event_max_sample_rate) may be lower.
const (
	MinHz = 1
	MaxHz = 999
)

// minRing and maxRing bound the size of a CPU's buffer in bytes, a power of two. Buffers
// above minRing, for fewer Reads, together have at most maxRings bytes.
const (
	minRing  = 512 << 10
	maxRing  = 4 << 20
	maxRings = 16 << 20
)

// stackBytes is the size of the copy of a stack in bytes. perf(1) copies as much.
const stackBytes = 8 << 10

// sampleBytes is the size of a sample with the deepest stacks and without a copy.
const sampleBytes = 2 << 10

// Bounds of the time between two Reads. Each Read wakes up the process, which on a host
// with few CPUs costs more than the samples.
const (
	minEvery = 100 * time.Millisecond
	maxEvery = time.Second
)

// perSecond is the number of bytes of the samples of a busy CPU in a second, with the
// deepest stacks.
func perSecond(hz int, has layout) int {
	if has.stacks {
		return hz * (sampleBytes + stackBytes)
	}
	return hz * sampleBytes
}

// ringBytes is the size of a CPU's buffer. It holds the samples of twice the time between
// two Reads.
func ringBytes(hz, cpus int, has layout) int {
	size := minRing
	for size < maxRing && (every(size, hz, has) < minEvery || every(size, hz, has) < maxEvery && 2*size*cpus <= maxRings) {
		size *= 2
	}
	return size
}

// every is the time in which half a buffer of a size is filled.
func every(size, hz int, has layout) time.Duration {
	return time.Duration(size) * time.Second / time.Duration(2*perSecond(hz, has))
}

// Interval is the longest time between two Reads with which samples fit into the buffers
// twice, 100 ms to 1 s.
func (s *Sampler) Interval() time.Duration { return s.every }

// Sampler is one recording of all CPUs that are online. Its methods are for one
// goroutine.
type Sampler struct {
	rings  []*ring
	every  time.Duration
	order  []entry
	rec    Record
	layout layout
}

// layout is what samples have besides thread, time and the kernel's walk.
type layout struct {
	stacks  bool // a copy of the stack, with the registers
	cgroups bool // the id of the control group
}

// Open makes the events; nothing is sampled before Start. With stacks, samples have
// copies of the user stacks, if unwind.Supported. It needs root, or CAP_PERFMON.
// ErrForbidden, ErrUnsupported.
func Open(hz int, stacks bool) (*Sampler, error) {
	if hz < MinHz || hz > MaxHz {
		return nil, fmt.Errorf("sample %d times a second: it has to be from %d to %d", hz, MinHz, MaxHz)
	}
	cpus, err := online()
	if err != nil {
		return nil, err
	}
	s := &Sampler{layout: layout{stacks && unwind.Supported, true}}
	open := func() error { return s.open(cpus, hz) }
	err = threads.Spend(open)
	if errors.Is(err, unix.EINVAL) { // before Linux 5.7, or without CONFIG_CGROUP_PERF
		s.layout.cgroups = false
		err = threads.Spend(open)
	}
	if err != nil {
		return nil, explain(err)
	}
	return s, nil
}

// open makes an event and a ring for each CPU; after an error there are none.
func (s *Sampler) open(cpus []int, hz int) error {
	attr := attributes(hz, s.layout)
	s.every = maxEvery
	for _, cpu := range cpus {
		move(cpu)
		r, err := newRing(cpu, &attr, ringBytes(hz, len(cpus), s.layout))
		if errors.Is(err, unix.ENODEV) { // the CPU has gone offline
			continue
		}
		if err != nil {
			return errors.Join(fmt.Errorf("open a perf event on CPU %d: %w", cpu, err), s.Close())
		}
		s.rings = append(s.rings, r)
		s.every = min(s.every, every(len(r.data), hz, s.layout))
	}
	s.every = max(s.every, minEvery)
	if len(s.rings) == 0 {
		return errors.New("no CPU is online")
	}
	return nil
}

// Flags of struct perf_event_attr that x/sys lacks.
const bitCgroup = unix.CBitFieldMaskBit32

func attributes(hz int, has layout) unix.PerfEventAttr {
	a := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CPU_CLOCK,
		Size:        uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Sample:      uint64(hz),
		Sample_type: unix.PERF_SAMPLE_TID | unix.PERF_SAMPLE_TIME | unix.PERF_SAMPLE_CALLCHAIN,
		Bits: unix.PerfBitDisabled | unix.PerfBitFreq | unix.PerfBitExcludeIdle | unix.PerfBitSampleIDAll |
			unix.PerfBitMmap | unix.PerfBitMmap2 | unix.PerfBitComm | unix.PerfBitCommExec | unix.PerfBitTask,
	}
	if has.stacks {
		a.Sample_type |= unix.PERF_SAMPLE_REGS_USER | unix.PERF_SAMPLE_STACK_USER
		a.Sample_regs_user, a.Sample_stack_user = userRegisters, stackBytes
	}
	if has.cgroups {
		a.Sample_type |= unix.PERF_SAMPLE_CGROUP
		a.Bits |= bitCgroup
	}
	return a
}

// explain adds the reason to an error of perf_event_open.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		why := ""
		if b, e := os.ReadFile("/proc/sys/kernel/perf_event_paranoid"); e == nil {
			why = " (kernel.perf_event_paranoid is " + strings.TrimSpace(string(b)) + ")"
		}
		hint := "run it as root"
		if os.Geteuid() == 0 {
			hint = "root here lacks CAP_PERFMON, or a seccomp profile or the kernel's lockdown forbids perf_event_open"
		}
		return &hinted{fmt.Errorf("%w%s: %w", ErrForbidden, why, err), hint}
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.E2BIG):
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	case errors.Is(err, unix.EINVAL):
		return &hinted{err, "a lower rate may be allowed: see kernel.perf_event_max_sample_rate"}
	case errors.Is(err, unix.EMFILE):
		return &hinted{err, "it needs a file descriptor for each CPU: raise the limit (ulimit -n)"}
	}
	return err
}

// hinted is an error with a hint.
type hinted struct {
	error
	hint string
}

func (h *hinted) Hint() string  { return h.hint }
func (h *hinted) Unwrap() error { return h.error }

// CPUs is the number of sampled CPUs.
func (s *Sampler) CPUs() int { return len(s.rings) }

// Cgroups reports whether samples have the id of their control group.
func (s *Sampler) Cgroups() bool { return s.layout.cgroups }

// Start begins sampling. The caller has to Read before the buffers are full, some
// seconds later; lost samples are counted.
func (s *Sampler) Start() error { return s.each("start", unix.PERF_EVENT_IOC_ENABLE) }

// Stop ends the sampling. Samples can still be read.
func (s *Sampler) Stop() error { return s.each("stop", unix.PERF_EVENT_IOC_DISABLE) }

func (s *Sampler) each(what string, request uint) error {
	return threads.Spend(func() error {
		for _, r := range s.rings {
			move(r.cpu)
			if err := unix.IoctlSetInt(r.fd, request, 0); err != nil {
				return fmt.Errorf("%s the perf event on CPU %d: %w", what, r.cpu, err)
			}
		}
		return nil
	})
}

// Close frees all. No call may follow.
func (s *Sampler) Close() error {
	rings := s.rings
	s.rings = nil
	return threads.Spend(func() error {
		var errs []error
		for _, r := range rings {
			move(r.cpu)
			errs = append(errs, r.close())
		}
		return errors.Join(errs...)
	})
}

// online lists the online CPUs: "0-3,5" (Documentation/admin-guide/cputopology.rst).
func online() ([]int, error) {
	const file = "/sys/devices/system/cpu/online"
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return []int{0}, nil // a kernel for one CPU
	} else if err != nil {
		return nil, err
	}
	cpus, err := parseList(strings.TrimSpace(string(b)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return cpus, nil
}

// maxCPUs is more than the kernel can be built for (CONFIG_NR_CPUS).
const maxCPUs = 1 << 16

func parseList(text string) ([]int, error) {
	var cpus []int
	for part := range strings.SplitSeq(text, ",") {
		from, to, ranged := strings.Cut(part, "-")
		if !ranged {
			to = from
		}
		a, err1 := strconv.ParseUint(from, 10, 16)
		b, err2 := strconv.ParseUint(to, 10, 16)
		if err1 != nil || err2 != nil || a > b || len(cpus) > maxCPUs {
			return nil, fmt.Errorf("%q is not a list of CPUs", text)
		}
		for c := a; c <= b; c++ {
			cpus = append(cpus, int(c))
		}
	}
	return cpus, nil
}
