package tracepoint

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// Latency is a histogram of the duration of an operation in the kernel. Its methods
// are for one goroutine.
type Latency struct {
	running
	buckets *ebpf.Map
}

// Histogram counts by powers of two: bucket n is from 2^n to under 2^(n+1)
// nanoseconds.
type Histogram [64]uint64

// Count is the number of operations.
func (h Histogram) Count() uint64 {
	var n uint64
	for _, b := range h {
		n += b
	}
	return n
}

// Since is the difference to an earlier reading of the same Latency.
func (h Histogram) Since(earlier Histogram) Histogram {
	for i := range h {
		h[i] -= min(h[i], earlier[i])
	}
	return h
}

// Over is the number of operations that took longer than d. The bucket of d counts as
// not longer.
func (h Histogram) Over(d time.Duration) uint64 {
	var n uint64
	for i, b := range h {
		if i < 63 && time.Duration(uint64(1)<<i) > d {
			n += b
		}
	}
	return n
}

// Quantile is the q-quantile, with q from 0 to 1: the geometric middle of its bucket,
// which is off by up to a factor of 1.4. It is 0 for an empty histogram.
func (h Histogram) Quantile(q float64) time.Duration {
	want := q * float64(h.Count())
	var n float64
	for i, b := range h {
		if n += float64(b); b > 0 && n >= want {
			return time.Duration(float64(uint64(1)<<i) * 1.414)
		}
	}
	return 0
}

const (
	atKey    = -8
	atTime   = -16
	atBucket = -24
)

// ReclaimLatency measures the time in which tasks reclaim memory for their own
// control group's limit.
func ReclaimLatency() (*Latency, error) {
	return newLatency("mm_vmscan_memcg_reclaim_begin", "mm_vmscan_memcg_reclaim_end", task(atKey))
}

// BlockLatency measures block requests from issue to completion. It needs Linux 5.11;
// before, the request was the second argument.
func BlockLatency() (*Latency, error) {
	request := asm.Instructions{argument(asm.R1, 0), asm.StoreMem(asm.RFP, atKey, asm.R1, asm.DWord)}
	return newLatency("block_rq_issue", "block_rq_complete", request)
}

// newLatency measures from one tracepoint to another with the same key, which key stores
// at atKey.
func newLatency(from, to string, key asm.Instructions) (*Latency, error) {
	l := &Latency{}
	if err := l.start(from, to, key); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (l *Latency) start(from, to string, key asm.Instructions) error {
	begun, err := l.newMap(&ebpf.MapSpec{Name: "begun", Type: ebpf.LRUHash, KeySize: 8, ValueSize: 8, MaxEntries: 16384})
	if err != nil {
		return err
	}
	if l.buckets, err = l.newMap(&ebpf.MapSpec{Name: "buckets", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 64}); err != nil {
		return err
	}
	if err := l.attach(to,
		key,
		lookup(begun, atKey),
		asm.Instructions{asm.LoadMem(asm.R7, asm.R0, 0, asm.DWord)},
		onEntry(asm.FnMapDeleteElem, begun, atKey),
		asm.Instructions{
			asm.FnKtimeGetNs.Call(),
			asm.Mov.Reg(asm.R8, asm.R0),
			asm.Sub.Reg(asm.R8, asm.R7),
		},
		log2(),
		asm.Instructions{asm.StoreMem(asm.RFP, atBucket, asm.R9, asm.Word)},
		lookup(l.buckets, atBucket),
		add(1)); err != nil {
		return err
	}
	return l.attach(from,
		key,
		asm.Instructions{asm.FnKtimeGetNs.Call(), asm.StoreMem(asm.RFP, atTime, asm.R0, asm.DWord)},
		store(begun, atKey, atTime, ebpf.UpdateAny))
}

// log2 makes R9 the position of R8's highest bit, without a loop.
func log2() asm.Instructions {
	is := asm.Instructions{asm.Mov.Imm(asm.R9, 0)}
	next := ""
	for _, bits := range []int32{32, 16, 8, 4, 2, 1} {
		first := asm.Mov.Reg(asm.R1, asm.R8)
		if next != "" {
			first = first.WithSymbol(next)
		}
		next = fmt.Sprintf("below%d", bits)
		is = append(is,
			first,
			asm.RSh.Imm(asm.R1, bits),
			asm.JEq.Imm(asm.R1, 0, next),
			asm.Mov.Reg(asm.R8, asm.R1),
			asm.Add.Imm(asm.R9, bits))
	}
	return append(is, asm.Mov.Reg(asm.R1, asm.R9).WithSymbol(next))
}

// Read returns the histogram so far.
func (l *Latency) Read() (Histogram, error) {
	var h Histogram
	for i := range h {
		if err := l.buckets.Lookup(uint32(i), &h[i]); err != nil {
			return h, fmt.Errorf("BPF: read a histogram: %w", err)
		}
	}
	return h, nil
}
