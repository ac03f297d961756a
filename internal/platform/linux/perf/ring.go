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

// take appends the data since the last call to to, and frees them in the ring.
func (r *ring) take(to []byte) []byte {
	p := r.positions()
	head := atomic.LoadUint64(&p.Data_head) // the load orders the data before it
	tail := p.Data_tail                     // only this process writes it
	size := uint64(len(r.data))
	from, until := tail%size, head%size
	switch {
	case head == tail:
		return to
	case from < until:
		to = append(to, r.data[from:until]...)
	default:
		to = append(append(to, r.data[from:]...), r.data[:until]...)
	}
	atomic.StoreUint64(&p.Data_tail, head)
	return to
}

// entry is the position of a record in the batch.
type entry struct {
	time uint64
	at   int
}

// headerSize is that of struct perf_event_header: type, misc and the size of the
// whole record.
const headerSize = 8

// Read calls f for each record that has come since the last Read, of all CPUs in the
// order of their times. f must not keep the record or its slices.
func (s *Sampler) Read(f func(*Record)) error {
	s.batch, s.order = s.batch[:0], s.order[:0]
	for _, r := range s.rings {
		begin := len(s.batch)
		s.batch = r.take(s.batch)
		for at := begin; at < len(s.batch); {
			rec := s.batch[at:]
			size := 0
			if len(rec) >= headerSize {
				size = int(binary.NativeEndian.Uint16(rec[6:]))
			}
			if size < headerSize || size > len(rec) {
				return fmt.Errorf("the perf buffer of CPU %d is not understood: a record of %d bytes in %d", r.cpu, size, len(rec))
			}
			s.order = append(s.order, entry{timeOf(rec[:size]), at})
			at += size
		}
	}
	slices.SortStableFunc(s.order, func(a, b entry) int { return cmp.Compare(a.time, b.time) })
	for _, e := range s.order {
		size := int(binary.NativeEndian.Uint16(s.batch[e.at+6:]))
		if s.rec.decode(s.batch[e.at:e.at+size], s.layout) {
			f(&s.rec)
		}
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
