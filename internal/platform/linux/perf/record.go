package perf

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/perf/unwind"
)

// Kind is the kind of a Record.
type Kind int

// The kinds, with the fields that they fill besides Pid and Tid.
const (
	Sample  Kind = iota // a thread ran: Kernel, User, Cgroup
	Command             // a thread has a new name: Name; Exec if it runs a new program
	Mapping             // a process has mapped code: Name, Addr, Len, Offset, Dev, Inode
	Fork                // a new thread, or process: Parent, ParentTid
	Exit                // a thread ended
	Group               // a new control group: Cgroup, Name
	Lost                // the buffer was full: Count
)

// Record is one record of the kernel. Pids are those in the pid namespace of the
// process that opened the Sampler: 0 for a process outside it, below 0 for one that
// has ended.
type Record struct {
	Kind     Kind
	Pid, Tid int
	// Kernel and User are the stack, the innermost function first.
	Kernel, User []uint64
	// Stack is a copy of the user stack, nil if the Sampler has none, or the thread has
	// none that can be walked.
	Stack *unwind.Stack
	// Cgroup is the id of the group in the hierarchy with the controller perf_event;
	// on 64 bits that is the inode of its directory. 0 if the Sampler has none.
	Cgroup uint64
	// Name is a command, a path as the process sees it, or that of a group from
	// the root of its hierarchy.
	Name   string
	Exec   bool
	Parent int
	// ParentTid is the thread that forked.
	ParentTid         int
	Addr, Len, Offset uint64
	Dev               uint64 // major << 32 | minor
	Inode             uint64
	Count             uint64

	copied unwind.Stack // of Stack
}

// Types of records, enum perf_event_type of include/uapi/linux/perf_event.h.
const (
	typeLost        = 2
	typeComm        = 3
	typeExit        = 4
	typeFork        = 7
	typeMmap2       = 10
	typeLostSamples = 13
	typeCgroup      = 19
)

// Marks in a stack for the kind of the following addresses (enum
// perf_callchain_context). Values from contextMax on are marks, not addresses.
const (
	contextMax    = ^uint64(4095) + 1
	contextKernel = ^uint64(128) + 1
	contextUser   = ^uint64(512) + 1
)

// decode reads a record, and reports whether it is complete and of a known kind.
func (r *Record) decode(b []byte, has layout) bool {
	kind, misc := binary.NativeEndian.Uint32(b), binary.NativeEndian.Uint16(b[4:])
	*r = Record{Kernel: r.Kernel[:0], User: r.User[:0], copied: r.copied}
	in := &input{rest: b[headerSize:]}
	switch kind {
	case unix.PERF_RECORD_SAMPLE:
		r.Kind = Sample
		r.Pid, r.Tid = in.pid(), in.pid()
		in.u64() // time
		r.stack(in)
		if has.stacks {
			r.copy(in)
		}
		if has.cgroups {
			r.Cgroup = in.u64()
		}
	case typeComm:
		r.Kind, r.Exec = Command, misc&unix.PERF_RECORD_MISC_COMM_EXEC != 0
		r.Pid, r.Tid, r.Name = in.pid(), in.pid(), in.text()
	case typeFork, typeExit:
		r.Kind = Fork
		if kind == typeExit {
			r.Kind = Exit
		}
		r.Pid, r.Parent, r.Tid, r.ParentTid = in.pid(), in.pid(), in.pid(), in.pid()
	case typeMmap2:
		r.Kind = Mapping
		r.Pid, r.Tid = in.pid(), in.pid()
		r.Addr, r.Len, r.Offset = in.u64(), in.u64(), in.u64()
		r.Dev = uint64(in.u32())<<32 | uint64(in.u32())
		r.Inode = in.u64()
		in.u64() // of the inode, the generation
		in.u64() // protection and flags
		r.Name = in.text()
	case typeCgroup:
		r.Kind, r.Cgroup, r.Name = Group, in.u64(), in.text()
	case typeLost:
		r.Kind = Lost
		in.u64() // of the event, the id
		r.Count = in.u64()
	case typeLostSamples:
		r.Kind, r.Count = Lost, in.u64()
	default:
		return false
	}
	return !in.short
}

// stack splits the addresses at the marks.
func (r *Record) stack(in *input) {
	to := (*[]uint64)(nil)
	for range in.u64() {
		a := in.u64()
		switch {
		case in.short:
			return
		case a == contextKernel:
			to = &r.Kernel
		case a == contextUser:
			to = &r.User
		case a >= contextMax: // of a hypervisor or a guest
			to = nil
		case to != nil:
			*to = append(*to, a)
		}
	}
}

// userRegisters are the registers that samples have: all general ones and rip (enum
// perf_event_x86_regs, arch/x86/include/uapi/asm/perf_regs.h).
const userRegisters = 0xff01ff

// numbers returns the numbers in DWARF of userRegisters, in the order of a sample.
func numbers() [17]uint8 { return [...]uint8{0, 3, 2, 1, 4, 5, 6, 7, 16, 8, 9, 10, 11, 12, 13, 14, 15} }

// abi64 is that of a 64-bit program (PERF_SAMPLE_REGS_ABI_64).
const abi64 = 2

// copy reads the registers and the copy of the stack, which is absent for a kernel thread.
func (r *Record) copy(in *input) {
	abi := in.u64()
	if abi != 0 {
		for _, n := range numbers() {
			r.copied.Registers[n] = in.u64()
		}
	}
	size := in.u64()
	if size == 0 {
		return
	}
	if size > stackBytes {
		in.short = true
		return
	}
	memory := in.next(int(size))
	used := in.u64() // the kernel could read
	if abi == abi64 && used <= size && !in.short {
		r.copied.Memory = memory[:used]
		r.Stack = &r.copied
	}
}

// input reads a record's fields. Past the end it returns zeros and records that.
type input struct {
	rest  []byte
	short bool
}

func (in *input) next(n int) []byte {
	if len(in.rest) < n {
		in.short, in.rest = true, nil
		return make([]byte, n)
	}
	b := in.rest[:n]
	in.rest = in.rest[n:]
	return b
}

func (in *input) u32() uint32 { return binary.NativeEndian.Uint32(in.next(4)) }
func (in *input) u64() uint64 { return binary.NativeEndian.Uint64(in.next(8)) }
func (in *input) pid() int    { return int(int32(in.u32())) }

// text reads up to a zero byte.
func (in *input) text() string {
	b, _, ok := bytes.Cut(in.rest, []byte{0})
	in.short = in.short || !ok
	return string(b)
}
