package probe

import (
	"slices"
	"time"

	"holdfast/internal/platform/linux/perf/elffile"
	"holdfast/internal/platform/linux/perf/symbol"
	"holdfast/internal/platform/linux/perf/unwind"
	"holdfast/internal/platform/linux/tracepoint"
)

// Bounds on naming the functions of programs. The first places have the highest counts. A
// program's file may be on a file system that does not respond.
const (
	namedPrograms = 5
	perProgram    = time.Second
	// maxDemangled bounds the length of a demangled C++ or Rust name: 2 to this power.
	maxDemangled = 10
)

// user names the path through the program that led to a place, the innermost function
// first. pid is the process's in this procfs, 0 if it is unknown. It returns nil if no
// function has a name or the program has exited.
func (r *resolver) user(p tracepoint.Place, pid int) []string {
	if pid == 0 || len(p.User) == 0 && p.Copied == nil || r.users == 0 {
		return nil
	}
	r.users--
	addrs := unwind.Calls(slices.Clone(p.User))
	names, inTime := elffile.Bounded(perProgram, func() []string {
		if p.Copied != nil {
			addrs = unwound(string(r.h.Proc), pid, p.Copied, addrs)
		}
		names, _ := symbol.Process(r.h.Proc.NSpid, string(r.h.Proc), pid, addrs)
		return names
	})
	if !inTime {
		r.users = 0
	}
	return named(names)
}

// unwound returns the calls that led to a place by the tables of the process's files, and
// completes them by those that the kernel found by frame pointers.
func unwound(procfs string, pid int, copied *unwind.Stack, byPointers []uint64) []uint64 {
	ms, err := symbol.Mappings(procfs, pid)
	if err != nil {
		return byPointers // the process has ended
	}
	var tables unwind.Tables[symbol.Mapping]
	var w unwind.Walker
	calls, whole := w.Walk(copied, func(pc uint64) (*unwind.Table, uint64, bool) {
		i, ok := symbol.Find(ms, pc)
		if !ok {
			return nil, 0, false
		}
		m := ms[i]
		var t *unwind.Table
		if m.Inode != 0 || m.Path == symbol.VDSO {
			t = tables.Get(m, func() (unwind.File, error) { return symbol.OpenMapping(procfs, pid, m) })
		}
		return t, pc - m.Begin + m.Offset, true
	})
	if whole {
		return calls
	}
	return unwind.Join(calls, byPointers)
}

// named returns the known names, demangled.
func named(names []string) []string {
	var known []string
	for _, n := range names {
		if n != "" {
			known = append(known, symbol.Demangle(n, maxDemangled))
		}
	}
	return known
}
