package tracepoint

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"holdfast/internal/platform/linux/perf/unwind"
)

// Sizes of copies of stacks. The kernel copies piece by piece, up to the end of the stack.
const (
	maxCopies  = 128 // a power of two; between two calls of free
	pieceBytes = 1 << 10
	pieces     = 16
)

// Registers in user space are where the kernel saved them: struct pt_regs of
// arch/x86/include/asm/ptrace.h, in words. Each line has the number in DWARF of a word;
// orig_ax, cs, flags and ss have none.
const (
	savedWords = 21
	noRegister = 0xff
	savedSP    = 19
)

func savedOrder() [savedWords]uint8 {
	return [...]uint8{15, 14, 13, 12, 6, 3, 11, 10, 9, 8, 0, 2, 1, 4, 5, noRegister, 16, noRegister, noRegister, 7, noRegister}
}

// Offsets in a copy.
const (
	copyNumber = 0
	copyLength = 8
	copyRegs   = 16
	copyStack  = copyRegs + 8*savedWords
	copyBytes  = copyStack + pieces*pieceBytes
)

// Entries of the map room.
const (
	roomNext = 0 // number of the next copy
	roomBase = 1 // number of the first one that is in use
)

// copies holds copies of user stacks, which BPF takes when a place is reached for the
// first time. A nil one takes none. It needs bpf_task_pt_regs (Linux 5.15).
type copies struct {
	room, stacks *ebpf.Map
}

func newCopies(r *running) (*copies, error) {
	c := &copies{}
	var err error
	// Numbers begin with 1: 0 is none.
	if c.room, err = r.newMap(&ebpf.MapSpec{Name: "room", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 2,
		Contents: []ebpf.MapKV{{Key: uint32(roomNext), Value: uint64(1)}, {Key: uint32(roomBase), Value: uint64(1)}}}); err != nil {
		return nil, err
	}
	c.stacks, err = r.newMap(&ebpf.MapSpec{Name: "copies", Type: ebpf.Array, KeySize: 4, ValueSize: copyBytes, MaxEntries: maxCopies})
	return c, err
}

// take copies the running task's registers and stack, and stores the number of the copy
// in the amount on the program's stack. It overwrites R7 to R9.
func (c *copies) take() asm.Instructions {
	const none = "no copy"
	number := asm.Instructions{
		asm.Mov.Imm(asm.R1, 0),
		asm.StoreMem(asm.RFP, atAmount+24, asm.R1, asm.DWord),
	}
	if c == nil {
		return number
	}
	element := func(m *ebpf.Map) asm.Instructions {
		return append(onEntry(asm.FnMapLookupElem, m, atScratch), asm.JEq.Imm(asm.R0, 0, none))
	}
	is := slices.Concat(number,
		asm.Instructions{asm.StoreImm(asm.RFP, atScratch, roomBase, asm.Word)}, element(c.room),
		asm.Instructions{asm.LoadMem(asm.R8, asm.R0, 0, asm.DWord), asm.StoreImm(asm.RFP, atScratch, roomNext, asm.Word)}, element(c.room),
		asm.Instructions{
			asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord), // so that a full map costs no atomic operation
			asm.Sub.Reg(asm.R1, asm.R8),
			asm.JGE.Imm(asm.R1, maxCopies, none),
			asm.Mov.Imm(asm.R7, 1),
			fetchAdd(asm.R0, asm.R7),
			asm.Mov.Reg(asm.R1, asm.R7),
			asm.Sub.Reg(asm.R1, asm.R8),
			asm.JGE.Imm(asm.R1, maxCopies, none),
			asm.Mov.Reg(asm.R1, asm.R7),
			asm.And.Imm(asm.R1, maxCopies-1),
			asm.StoreMem(asm.RFP, atScratch, asm.R1, asm.Word),
		}, element(c.stacks),
		asm.Instructions{
			asm.Mov.Reg(asm.R9, asm.R0),
			asm.StoreMem(asm.RFP, atAmount+24, asm.R7, asm.DWord),
			asm.StoreMem(asm.R9, copyNumber, asm.R7, asm.DWord),
			asm.Mov.Imm(asm.R1, 0),
			asm.StoreMem(asm.R9, copyLength, asm.R1, asm.DWord),
			asm.FnGetCurrentTaskBtf.Call(),
			asm.Mov.Reg(asm.R1, asm.R0),
			asm.FnTaskPtRegs.Call(),
			asm.Mov.Reg(asm.R3, asm.R0),
			asm.Mov.Reg(asm.R1, asm.R9),
			asm.Add.Imm(asm.R1, copyRegs),
			asm.Mov.Imm(asm.R2, 8*savedWords),
			asm.FnProbeReadKernel.Call(),
			asm.JNE.Imm(asm.R0, 0, none),
			asm.LoadMem(asm.R7, asm.R9, copyRegs+8*savedSP, asm.DWord),
		})
	for i := range int32(pieces) {
		is = append(is,
			asm.Mov.Reg(asm.R1, asm.R9),
			asm.Add.Imm(asm.R1, copyStack+i*pieceBytes),
			asm.Mov.Imm(asm.R2, pieceBytes),
			asm.Mov.Reg(asm.R3, asm.R7),
			asm.Add.Imm(asm.R3, i*pieceBytes),
			asm.FnProbeReadUser.Call(),
			asm.JNE.Imm(asm.R0, 0, none), // the end of the stack, or a page that is not in memory
			asm.Mov.Imm(asm.R1, (i+1)*pieceBytes),
			asm.StoreMem(asm.R9, copyLength, asm.R1, asm.DWord),
		)
	}
	return append(is, asm.Mov.Imm(asm.R0, 0).WithSymbol(none))
}

// fetchAdd adds src to the 8 bytes at dst, atomically, and sets src to their value before
// (Linux 5.12).
func fetchAdd(dst, src asm.Register) asm.Instruction {
	i := asm.FetchAdd.Mem(dst, src, asm.DWord, 0)
	i.Constant = 1 // BPF_FETCH, which cilium/ebpf 0.22 drops
	return i
}

// get returns a copy, or nil if there is none, or it is of a 32-bit program.
func (c *copies) get(number uint64) *unwind.Stack {
	if c == nil || number == 0 {
		return nil
	}
	value := new([copyBytes]byte)
	if c.stacks.Lookup(uint32(number%maxCopies), value) != nil {
		return nil
	}
	word := func(at int) uint64 { return binary.NativeEndian.Uint64(value[at:]) }
	length := word(copyLength)
	const cs64 = 0x33 // __USER_CS of arch/x86/include/asm/segment.h
	if word(copyNumber) != number || length == 0 || length > pieces*pieceBytes || word(copyRegs+8*17) != cs64 {
		return nil
	}
	s := &unwind.Stack{Memory: value[copyStack : copyStack+length]}
	for i, n := range savedOrder() {
		if n != noRegister {
			s.Registers[n] = word(copyRegs + 8*i)
		}
	}
	return s
}

// free makes room for new copies. Those so far must not be read any more.
func (c *copies) free() error {
	if c == nil {
		return nil
	}
	var next uint64
	err := c.room.Lookup(uint32(roomNext), &next)
	if err == nil {
		err = c.room.Put(uint32(roomBase), next)
	}
	if err != nil {
		return fmt.Errorf("BPF: make room for copies of stacks: %w", err)
	}
	return nil
}
