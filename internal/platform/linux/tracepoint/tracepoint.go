// Package tracepoint counts and times tracepoints in the kernel by small BPF
// programs, which it assembles itself. It needs no compiler, no object files and no
// tracefs, because raw tracepoints are attached by name (Linux 4.17,
// bpf_raw_tracepoint_open). It needs root, or CAP_BPF and CAP_PERFMON, and Linux 5.5
// (bpf_probe_read_kernel).
//
// The positions of a tracepoint's arguments are those of its TP_PROTO in
// include/trace/events.
package tracepoint

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// ErrNoTracepoint means that this kernel does not have a tracepoint.
var ErrNoTracepoint = errors.New("the kernel has no such tracepoint")

// running has the maps and the attached programs of one measurement. They end with
// Close or with the process.
type running struct {
	maps  []*ebpf.Map
	links []link.Link
}

// Close ends the measurement and frees it.
func (r *running) Close() error {
	var errs []error
	for _, l := range r.links {
		errs = append(errs, l.Close())
	}
	for _, m := range r.maps {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

func (r *running) newMap(s *ebpf.MapSpec) (*ebpf.Map, error) {
	m, err := unlimited(func() (*ebpf.Map, error) { return ebpf.NewMap(s) })
	if err != nil {
		return nil, fmt.Errorf("BPF: make a map: %w", err)
	}
	r.maps = append(r.maps, m)
	return m, nil
}

// unlimited calls load, and again without a limit of locked memory if load fails for it:
// before Linux 5.11 maps and programs count against RLIMIT_MEMLOCK. ebpf/rlimit would do the
// same, but it makes a map at the start of each process, which takes a tenth of its CPU time.
func unlimited[T any](load func() (T, error)) (T, error) {
	v, err := load()
	if !errors.Is(err, unix.EPERM) {
		return v, err
	}
	none := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	if unix.Setrlimit(unix.RLIMIT_MEMLOCK, &none) != nil {
		return v, err
	}
	return load()
}

// attach loads a program of these parts and attaches it to a tracepoint. In the parts, R6
// is always the context, and a jump to exit ends the program. Calls overwrite R0 to R5
// (Documentation/bpf/standardization/instruction-set.rst).
func (r *running) attach(tracepoint string, parts ...asm.Instructions) error {
	program := slices.Concat(asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}, slices.Concat(parts...),
		asm.Instructions{asm.Mov.Imm(asm.R0, 0).WithSymbol(exit), asm.Return()})
	p, err := unlimited(func() (*ebpf.Program, error) {
		return ebpf.NewProgram(&ebpf.ProgramSpec{Name: "holdfast", Type: ebpf.RawTracepoint, Instructions: program, License: "GPL"})
	})
	if err != nil {
		return fmt.Errorf("BPF: load the program for %s: %w", tracepoint, err)
	}
	defer p.Close() // the link keeps the program
	l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: tracepoint, Program: p})
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", tracepoint, ErrNoTracepoint)
	} else if err != nil {
		return fmt.Errorf("BPF: attach to %s: %w", tracepoint, err)
	}
	r.links = append(r.links, l)
	return nil
}

const exit = "exit"

// The rest are parts of programs.

// argument loads the tracepoint's argument n.
func argument(to asm.Register, n int) asm.Instruction {
	return asm.LoadMem(to, asm.R6, int16(8*n), asm.DWord)
}

// frame is the address of an offset on the stack.
func frame(to asm.Register, offset int32) asm.Instructions {
	return asm.Instructions{asm.Mov.Reg(to, asm.RFP), asm.Add.Imm(to, offset)}
}

// onEntry calls a function of a map for the key at an offset on the stack.
func onEntry(call asm.BuiltinFunc, m *ebpf.Map, key int32) asm.Instructions {
	return append(append(asm.Instructions{asm.LoadMapPtr(asm.R1, m.FD())}, frame(asm.R2, key)...), call.Call())
}

// lookup sets R0 to the address of an entry's value, or ends the program if there is no
// entry.
func lookup(m *ebpf.Map, key int32) asm.Instructions {
	return append(onEntry(asm.FnMapLookupElem, m, key), asm.JEq.Imm(asm.R0, 0, exit))
}

// store writes an entry; key and value are offsets on the stack.
func store(m *ebpf.Map, key, value int32, flags ebpf.MapUpdateFlags) asm.Instructions {
	return slices.Concat(frame(asm.R3, value), asm.Instructions{asm.Mov.Imm(asm.R4, int32(flags))}, onEntry(asm.FnMapUpdateElem, m, key))
}

// add adds a number to the value at R0, atomically.
func add(n int32) asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R1, n), asm.StoreXAdd(asm.R0, asm.R1, asm.DWord)}
}

// task stores the running task on the stack.
func task(at int16) asm.Instructions {
	return asm.Instructions{asm.FnGetCurrentPidTgid.Call(), asm.StoreMem(asm.RFP, at, asm.R0, asm.DWord)}
}
