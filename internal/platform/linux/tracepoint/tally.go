package tracepoint

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"holdfast/internal/platform/linux/perf/unwind"
)

// Tally counts how often a tracepoint is reached, by process and path. Its methods
// are for one goroutine.
type Tally struct {
	running
	counts, stacks *ebpf.Map // stacks is nil without paths
	copies         *copies   // nil without paths, or before Linux 5.15
}

// Place is a process and path that reached the tracepoint, and how often.
type Place struct {
	Object  uint64 // the address of the lock, for LockWaits; the call's number, for CountCalls; see CountClocks; else 0
	Cgroup  uint64 // inode of the process's group in the unified hierarchy
	Pid     int    // in the first pid namespace
	Command string // of the thread
	Stack   []uint64
	User    []uint64 // stack of the program at the first time, by frame pointers; none for kernel threads
	// Copied is a copy of that stack, for a program without frame pointers. Only the
	// places that are named first have one, those with the most counts or time.
	Copied *unwind.Stack
	Count  uint64
	Waited time.Duration // the sum, for LockWaits
}

// place and amount are the key and the value of the map.
type place struct {
	Object  uint64
	Cgroup  uint64
	Tgid    uint32
	Stack   int32
	Command [16]byte
}

type amount struct {
	Count, Nanos uint64
	User         int64  // the stack of the program, below 0 if there is none
	Copy         uint64 // the number of the copy of that stack, 0 if there is none
}

// The offsets on the program's stack.
const (
	atPlace   = -40
	atAmount  = -72
	atScratch = -80
)

// Sizes of the maps. Further entries are not counted.
const (
	maxPlaces = 4096
	maxStacks = 2048
	maxDepth  = 64 // of a stack
)

// newTally makes a Tally, with or without paths through the kernel, and attaches its
// programs.
func newTally(paths bool, attach func(*Tally) error) (*Tally, error) {
	if paths && unwind.Supported {
		t, err := openTally(paths, true, attach)
		if err == nil || errors.Is(err, ErrNoTracepoint) || errors.Is(err, fs.ErrPermission) {
			return t, err
		}
		// The kernel lacks what copies need.
	}
	return openTally(paths, false, attach)
}

func openTally(paths, copied bool, attach func(*Tally) error) (*Tally, error) {
	t := &Tally{}
	var err error
	if copied {
		t.copies, err = newCopies(&t.running)
	}
	if err == nil {
		t.counts, err = t.newMap(&ebpf.MapSpec{Name: "places", Type: ebpf.Hash, KeySize: 40, ValueSize: 32, MaxEntries: maxPlaces})
	}
	if err == nil && paths {
		t.stacks, err = t.newMap(&ebpf.MapSpec{Name: "stacks", Type: ebpf.StackTrace, KeySize: 4, ValueSize: 8 * maxDepth, MaxEntries: maxStacks})
	}
	if err == nil {
		err = attach(t)
	}
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// here counts one for the running task: R7 is the object, R8 nanoseconds.
func (t *Tally) here() asm.Instructions {
	return slices.Concat(
		asm.Instructions{
			asm.StoreMem(asm.RFP, atPlace, asm.R7, asm.DWord),
			asm.FnGetCurrentCgroupId.Call(),
			asm.StoreMem(asm.RFP, atPlace+8, asm.R0, asm.DWord),
			asm.FnGetCurrentPidTgid.Call(),
			asm.RSh.Imm(asm.R0, 32),
			asm.StoreMem(asm.RFP, atPlace+16, asm.R0, asm.Word),
		},
		t.path(0),
		asm.Instructions{
			asm.StoreMem(asm.RFP, atPlace+20, asm.R0, asm.Word), // below 0 if there is none
			asm.Mov.Imm(asm.R1, 0),
			asm.StoreMem(asm.RFP, atPlace+24, asm.R1, asm.DWord),
			asm.StoreMem(asm.RFP, atPlace+32, asm.R1, asm.DWord),
		},
		frame(asm.R1, atPlace+24),
		asm.Instructions{asm.Mov.Imm(asm.R2, 16), asm.FnGetCurrentComm.Call()},
		onEntry(asm.FnMapLookupElem, t.counts, atPlace),
		asm.Instructions{asm.JNE.Imm(asm.R0, 0, "known")},
		t.path(userStack), // once for each place: walking the stack doubles the cost
		asm.Instructions{
			asm.StoreMem(asm.RFP, atAmount+16, asm.R0, asm.DWord),
			asm.Mov.Imm(asm.R1, 1),
			asm.StoreMem(asm.RFP, atAmount, asm.R1, asm.DWord),
			asm.StoreMem(asm.RFP, atAmount+8, asm.R8, asm.DWord),
		},
		t.copies.take(),
		store(t.counts, atPlace, atAmount, ebpf.UpdateNoExist), // keeps the entry of a concurrent CPU
		asm.Instructions{
			asm.Ja.Label(exit),
			asm.Mov.Imm(asm.R1, 1).WithSymbol("known"),
			asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
			asm.Add.Imm(asm.R0, 8),
			asm.StoreXAdd(asm.R0, asm.R8, asm.DWord),
		},
	)
}

// userStack selects the stack of the program instead of the kernel's
// (BPF_F_USER_STACK, include/uapi/linux/bpf.h).
const userStack = 1 << 8

// path sets R0 to the id of the stack, or below 0 if there is none.
func (t *Tally) path(flags int32) asm.Instructions {
	if t.stacks == nil {
		return asm.Instructions{asm.Mov.Imm(asm.R0, -1)}
	}
	return asm.Instructions{
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.LoadMapPtr(asm.R2, t.stacks.FD()),
		asm.Mov.Imm(asm.R3, flags),
		asm.FnGetStackid.Call(),
	}
}

// workFunc is the offset of work_struct.func on 64 bits: after data and entry
// (include/linux/workqueue_types.h).
const workFunc = 24

// CountWork counts the queueing of work items of the function at an address.
func CountWork(function uint64) (*Tally, error) {
	return newTally(true, func(t *Tally) error {
		// workqueue_queue_work(req_cpu, pwq, work)
		return t.attach("workqueue_queue_work",
			field(2, workFunc, 8),
			asm.Instructions{
				asm.LoadMem(asm.R1, asm.RFP, atScratch, asm.DWord),
				asm.LoadImm(asm.R2, int64(function), asm.DWord),
				asm.JNE.Reg(asm.R1, asm.R2, exit),
			},
			withoutObject(),
			t.here())
	})
}

// CountEvent counts a tracepoint by process and, with paths, by path, which doubles
// the cost.
func CountEvent(tracepoint string, paths bool) (*Tally, error) {
	return newTally(paths, func(t *Tally) error { return t.attach(tracepoint, withoutObject(), t.here()) })
}

// CountCalls counts system calls. It adds 0.2 to 0.8 µs to each call on the host
// (measured for docs/doctor.md), so it is for a few seconds only.
func CountCalls() (*Tally, error) {
	return newTally(false, func(t *Tally) error {
		// sys_enter(regs, id)
		return t.attach("sys_enter", asm.Instructions{argument(asm.R7, 1), asm.Mov.Imm(asm.R8, 0)}, t.here())
	})
}

// The offset of request.cmd_flags, with the operation in the lowest 8 bits
// (include/linux/blk-mq.h, blk_types.h). Linux 5.11 and later.
const (
	requestFlags = 24
	operation    = 0xff
	opRead       = 0
)

// CountWrites counts block requests other than reads, that is writes and flushes, by
// process. Requests that wait for a busy disk count for the kernel worker that issues
// them. It needs Linux 5.11; before, the request was the second argument.
func CountWrites() (*Tally, error) {
	return newTally(false, func(t *Tally) error {
		// block_rq_issue(rq)
		return t.attach("block_rq_issue",
			field(0, requestFlags, 4),
			asm.Instructions{
				asm.LoadMem(asm.R1, asm.RFP, atScratch, asm.Word),
				asm.And.Imm(asm.R1, operation),
				asm.JEq.Imm(asm.R1, opRead, exit),
			},
			withoutObject(),
			t.here())
	})
}

// withoutObject sets the object and the nanoseconds of here to 0.
func withoutObject() asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R7, 0), asm.Mov.Imm(asm.R8, 0)}
}

// field copies size bytes at an offset of what argument n points to, to the stack at
// atScratch.
func field(n int, offset, size int32) asm.Instructions {
	return slices.Concat(
		asm.Instructions{argument(asm.R3, n), asm.Add.Imm(asm.R3, offset)},
		toScratch(size))
}

// toScratch copies size bytes from the kernel's address R3 to the stack at atScratch.
func toScratch(size int32) asm.Instructions {
	return slices.Concat(frame(asm.R1, atScratch), asm.Instructions{asm.Mov.Imm(asm.R2, size), asm.FnProbeReadKernel.Call()})
}

// Read returns the counts so far.
func (t *Tally) Read() ([]Place, error) {
	ps, _, err := t.read()
	return ps, err
}

// Take is Read for a long-lived Tally: it removes the entries that it returns, to
// make room. Counts between the read and the removal of an entry are lost.
func (t *Tally) Take() ([]Place, error) {
	ps, keys, err := t.read()
	for k, of := range keys {
		if gone := t.counts.Delete(&k); gone != nil && !errors.Is(gone, ebpf.ErrKeyNotExist) {
			err = errors.Join(err, fmt.Errorf("BPF: forget what was counted: %w", gone))
		}
		for _, id := range []int64{int64(k.Stack), of.User} {
			if id >= 0 { // several entries may share a stack
				_ = t.stacks.Delete(uint32(id))
			}
		}
	}
	return ps, errors.Join(err, t.copies.free())
}

// read returns the counts, and the entries of the map.
func (t *Tally) read() ([]Place, map[place]amount, error) {
	var ps []Place
	keys := make(map[place]amount)
	var numbers []uint64
	var k place
	var v amount
	it := t.counts.Iterate()
	for it.Next(&k, &v) {
		command, _, _ := bytes.Cut(k.Command[:], []byte{0})
		p := Place{Object: k.Object, Cgroup: k.Cgroup, Pid: int(k.Tgid), Command: string(command), Count: v.Count, Waited: time.Duration(v.Nanos)}
		p.Stack, p.User = t.frames(int64(k.Stack)), t.frames(v.User)
		ps, numbers = append(ps, p), append(numbers, v.Copy)
		keys[k] = v
	}
	if err := it.Err(); err != nil {
		return ps, keys, fmt.Errorf("BPF: read what was counted: %w", err)
	}
	for _, i := range foremost(ps) {
		ps[i].Copied = t.copies.get(numbers[i])
	}
	return ps, keys, nil
}

// maxForemost is the number of places that have a copy of their stack, for each order.
const maxForemost = 16

// foremost returns the indices of the places with the highest counts and the longest
// waits.
func foremost(ps []Place) []int {
	order := make([]int, len(ps))
	for i := range order {
		order[i] = i
	}
	var first []int
	for _, by := range []func(a, b int) int{
		func(a, b int) int { return cmp.Compare(ps[b].Count, ps[a].Count) },
		func(a, b int) int { return cmp.Compare(ps[b].Waited, ps[a].Waited) },
	} {
		slices.SortFunc(order, by)
		first = append(first, order[:min(len(order), maxForemost)]...)
	}
	slices.Sort(first)
	return slices.Compact(first)
}

// frames returns the addresses of a stack, the innermost first, or none if another
// stack has taken its slot.
func (t *Tally) frames(id int64) []uint64 {
	var frames [maxDepth]uint64
	if id < 0 || t.stacks.Lookup(uint32(id), &frames) != nil {
		return nil
	}
	n := slices.Index(frames[:], 0)
	if n < 0 {
		n = maxDepth
	}
	return slices.Clone(frames[:n])
}
