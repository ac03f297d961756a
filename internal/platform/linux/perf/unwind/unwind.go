// Package unwind finds the callers of functions of programs that were compiled without
// frame pointers, as most distributions compile C and C++. It walks a copy of a stack by
// the tables that exception handling needs and that nearly every program has: .eh_frame,
// or else .debug_frame (DWARF 5, section 6.4; Linux Standard Base, Exception Frames).
//
// Functions without a table (code made at run time, Go) are walked by frame pointers, those
// of musl by a search for the return address.
//
// It is for x86-64. On arm64 compilers keep frame pointers, so the kernel's own walk
// finds callers there.
//
// Tables and stacks belong to untrusted processes. All sizes and the work on them are
// bounded; a damaged table ends the walk early and cannot do more.
package unwind

import (
	"encoding/binary"
	"runtime"
)

// Supported reports whether this package can walk the stacks of this architecture.
const Supported = runtime.GOARCH == "amd64"

// Numbers of registers (System V ABI for AMD64, figure 3.36).
const (
	regBP     = 6
	regSP     = 7
	regPC     = 16
	registers = 17
)

// Registers are those of a thread in user space, by their number in DWARF: rax, rdx, rcx,
// rbx, rsi, rdi, rbp, rsp, r8 to r15, rip.
type Registers [registers]uint64

// Stack is what a thread's stack held at one moment.
type Stack struct {
	Registers Registers
	Memory    []byte // from Registers' rsp on
}

// Bounds of a walk.
const (
	maxFrames     = 127 // as the kernel's own walk (kernel.perf_event_max_stack)
	maxExpression = 2000
)

// Code finds the code at an address: the tables of its file, nil if there are none, and
// the position in that file. It reports false if no code is mapped there.
type Code func(pc uint64) (t *Table, offset uint64, ok bool)

// Walker walks stacks. It is for one goroutine. The zero value is ready.
type Walker struct {
	known uint32 // registers whose value is known, by bit
	regs  Registers
	stack *Stack
	fuel  int // remaining operations of expressions
	found []uint64
}

// Walk returns the innermost address and the calls that led to it, each as an address
// within the call's instruction. It reports true if it reached the end of the stack.
// The result is valid until the next Walk.
func (w *Walker) Walk(s *Stack, code Code) (calls []uint64, whole bool) {
	*w = Walker{known: 1<<registers - 1, regs: s.Registers, stack: s, fuel: maxExpression, found: w.found[:0]}
	exact := true // the address is that of an instruction, not one to return to
	for len(w.found) < maxFrames {
		pc := w.regs[regPC]
		if pc == 0 {
			return w.found, true
		}
		at := pc
		if !exact {
			at--
		}
		t, offset, ok := code(at)
		if !ok {
			return w.found, false
		}
		rules := none
		if t != nil {
			rules = t.find(offset)
		}
		if rules.signal {
			at = pc
		}
		w.found = append(w.found, at)
		exact = rules.signal
		switch {
		case rules.bad:
			return w.found, false
		case rules.last:
			return w.found, true
		case rules == none && !w.byFramePointer(code) && (t == nil || !w.byCall(code)), rules != none && !w.byRules(rules):
			return w.found, false
		}
	}
	return w.found, false
}

// Join completes the calls of an incomplete walk by those of the kernel's walk by frame
// pointers, from the address at which both agree. The kernel's walk is not limited to a
// copy of the stack. Without such an address it returns the longer of the two if the walk
// found no caller, else the calls.
func Join(calls, byPointers []uint64) []uint64 {
	if len(calls) == 0 {
		return byPointers
	}
	last := calls[len(calls)-1]
	for i, a := range byPointers {
		if a == last || a == last+1 {
			return append(calls, Calls(byPointers[i:])[1:]...)
		}
	}
	return calls
}

// Calls turns the addresses of a kernel's walk, in place, into those of the calls: a
// return address may already belong to the next function.
func Calls(stack []uint64) []uint64 {
	for i := range stack {
		if i > 0 {
			stack[i]--
		}
	}
	return stack
}

// word reads 8 bytes of the stack.
func (w *Walker) word(addr uint64) (uint64, bool) {
	at := addr - w.stack.Registers[regSP]
	if at > uint64(len(w.stack.Memory)) || uint64(len(w.stack.Memory))-at < 8 {
		return 0, false
	}
	return binary.LittleEndian.Uint64(w.stack.Memory[at:]), true
}

func (w *Walker) knows(reg int) bool { return w.known&(1<<reg) != 0 }

// byFramePointer steps to the caller of a function that has saved the frame pointer: the
// caller's one is where it points to, with the return address above it.
func (w *Walker) byFramePointer(code Code) bool {
	bp := w.regs[regBP]
	if !w.knows(regBP) || bp < w.regs[regSP] || bp%8 != 0 {
		return false
	}
	saved, ok1 := w.word(bp)
	pc, ok2 := w.word(bp + 8)
	if !ok1 || !ok2 {
		return false
	}
	if _, _, ok := code(pc - 1); !ok && pc != 0 {
		return false
	}
	w.regs[regBP], w.regs[regPC], w.regs[regSP] = saved, pc, bp+16
	w.known = 1<<regBP | 1<<regPC | 1<<regSP
	return true
}

// maxSearch is the size in words of the part of the stack that byCall searches.
const maxSearch = 32

// byCall steps to the caller of a function without a table in a file that has tables for
// others, as musl's libc is compiled. The return address is the first word on the stack
// that follows a call instruction in a function with a table. Functions that only make a
// system call keep nothing else on the stack.
func (w *Walker) byCall(code Code) bool {
	for i := range uint64(maxSearch) {
		at := w.regs[regSP] + 8*i
		pc, ok := w.word(at)
		if !ok {
			return false
		}
		t, offset, ok := code(pc - 1)
		if !ok || t == nil || !t.follows(offset+1) {
			continue
		}
		w.regs[regPC], w.regs[regSP] = pc, at+8
		w.known |= 1<<regPC | 1<<regSP // the others may have changed, but most are saved by their user
		w.known &^= 1 << regBP
		return true
	}
	return false
}

// byRules steps to the caller by the rules of a table.
func (w *Walker) byRules(rules *row) bool {
	cfa, ok := w.value(&rules.cfa, 0)
	if !ok || cfa < w.regs[regSP] {
		return false
	}
	before, known := w.regs, w.known
	after := before
	for i := range rules.saved {
		s := &rules.saved[i]
		v, ok := w.value(&s.rule, cfa)
		if ok {
			after[s.reg] = v
			known |= 1 << s.reg
		} else {
			known &^= 1 << s.reg
		}
		if !ok && s.reg == regPC {
			return false
		}
	}
	if !rules.savesSP {
		after[regSP] = cfa
	}
	// A stack grows downwards: a caller's part is above. A signal may have its own stack.
	if !rules.signal && after[regSP] <= before[regSP] {
		return false
	}
	w.regs, w.known = after, known
	return w.knows(regPC) && w.knows(regSP)
}

// value calculates a rule.
func (w *Walker) value(r *rule, cfa uint64) (uint64, bool) {
	switch r.kind {
	case ruleRegister: // plus an offset, for the frame's address
		return w.regs[r.reg] + uint64(r.offset), w.knows(int(r.reg))
	case ruleSaved:
		return w.word(cfa + uint64(r.offset))
	case ruleValue:
		return cfa + uint64(r.offset), true
	case ruleExpression:
		a, ok := w.evaluate(r.expression, cfa)
		if !ok {
			return 0, false
		}
		return w.word(a)
	case ruleValueExpression:
		return w.evaluate(r.expression, cfa)
	}
	return 0, false
}
