package perf

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ring is the event of one CPU and the buffer that the kernel writes its records
// to: a page of positions, and the data (struct perf_event_mmap_page,
// include/uapi/linux/perf_event.h).
type ring struct {
	cpu, fd int
	mem     []byte
	data    []byte
	head    uint64 // up to where records have been taken
	wrapped []byte // a copy of the record that goes past the end of data, one for each take
}

func newRing(cpu int, attr *unix.PerfEventAttr, size int) (*ring, error) {
	fd, err := unix.PerfEventOpen(attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	page := os.Getpagesize()
	mem, err := unix.Mmap(fd, 0, page+size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err == unix.EPERM && size > minRing { // kernel.perf_event_mlock_kb, without CAP_IPC_LOCK
		mem, err = unix.Mmap(fd, 0, page+minRing, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("map its buffer: %w", err)
	}
	return &ring{cpu: cpu, fd: fd, mem: mem, data: mem[page:]}, nil
}

func (r *ring) close() error {
	err := unix.Munmap(r.mem)
	if e := unix.Close(r.fd); err == nil {
		err = e
	}
	r.mem, r.data = nil, nil
	return err
}

func (r *ring) positions() *unix.PerfEventMmapPage {
	return (*unix.PerfEventMmapPage)(unsafe.Pointer(&r.mem[0]))
}

// take appends the records since the last call to to. They stay in the ring until free:
// most of a sample is a copy of a stack, of which a walk reads little.
func (r *ring) take(to []entry) ([]entry, error) {
	r.head = atomic.LoadUint64(&r.positions().Data_head) // the load orders the data before it
	for at := r.positions().Data_tail; at != r.head; {   // only this process writes the tail
		left := r.head - at
		size := uint64(0)
		if left >= headerSize { // records are aligned to 8 bytes, so a header does not wrap
			size = uint64(binary.NativeEndian.Uint16(r.data[at%uint64(len(r.data))+6:]))
		}
		if size < headerSize || size > left {
			return to, fmt.Errorf("the perf buffer of CPU %d is not understood: a record of %d bytes in %d", r.cpu, size, left)
		}
		rec := r.piece(at, size)
		to = append(to, entry{timeOf(rec), rec})
		at += size
	}
	return to, nil
}

// piece returns a part of the data, in the ring unless it goes past the ring's end.
func (r *ring) piece(at, size uint64) []byte {
	from := at % uint64(len(r.data))
	if from+size <= uint64(len(r.data)) {
		return r.data[from : from+size : from+size]
	}
	r.wrapped = append(append(r.wrapped[:0], r.data[from:]...), r.data[:from+size-uint64(len(r.data))]...)
	return r.wrapped
}

// free gives the space of the taken records back to the kernel.
func (r *ring) free() { atomic.StoreUint64(&r.positions().Data_tail, r.head) }

// entry is a record in a ring.
type entry struct {
	time uint64
	rec  []byte
}

// headerSize is that of struct perf_event_header: type, misc and the size of the
// whole record.
const headerSize = 8

// Read calls f for each record that has come since the last Read, of all CPUs in the
// order of their times. f must not keep the record or its slices.
func (s *Sampler) Read(f func(*Record)) error {
	s.order = s.order[:0]
	for _, r := range s.rings {
		var err error
		if s.order, err = r.take(s.order); err != nil {
			return err
		}
	}
	slices.SortStableFunc(s.order, func(a, b entry) int { return cmp.Compare(a.time, b.time) })
	for _, e := range s.order {
		if s.rec.decode(e.rec, s.layout) {
			f(&s.rec)
		}
	}
	for _, r := range s.rings {
		r.free()
	}
	return nil
}

// timeOf is the time of a record: a sample has it after its pid and tid; others end
// with pid, tid and time (struct sample_id).
func timeOf(rec []byte) uint64 {
	at := len(rec) - 8
	if binary.NativeEndian.Uint32(rec) == unix.PERF_RECORD_SAMPLE {
		at = headerSize + 8
	}
	if at < headerSize || at+8 > len(rec) {
		return 0
	}
	return binary.NativeEndian.Uint64(rec[at:])
}
