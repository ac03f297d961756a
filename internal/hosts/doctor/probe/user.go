package probe

import (
	"slices"
	"time"

	"holdfast/internal/platform/linux/perf/symbol"
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
// first. It returns nil if no function has a name or the program has exited.
func (r *resolver) user(p tracepoint.Place) []string {
	if !r.own || len(p.User) == 0 || r.users == 0 {
		return nil
	}
	r.users--
	addrs := slices.Clone(p.User)
	for i := range addrs[1:] {
		addrs[i+1]-- // the address of the call instead of its return address
	}
	names, inTime := symbol.Bounded(perProgram, func() []string {
		names, _ := symbol.Process(r.h.Proc.NSpid, string(r.h.Proc), p.Pid, addrs)
		return names
	})
	if !inTime {
		r.users = 0
	}
	return named(names)
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
