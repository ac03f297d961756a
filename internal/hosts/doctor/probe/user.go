package probe

import (
	"slices"
	"time"

	"github.com/ianlancetaylor/demangle"

	"holdfast/internal/platform/linux/perf/symbol"
	"holdfast/internal/platform/linux/tracepoint"
)

// Bounds of naming the functions of programs: the first places are the worst, and a
// file may lie on a filesystem that never answers.
const (
	namedPrograms = 5
	perProgram    = time.Second
	// maxDemangled bounds what a name of C++ or Rust becomes: 2 to this power.
	maxDemangled = 10
)

// user names the path through the program that was on the way to a place, the
// innermost function first; nil where nothing of it has a name, or the program is
// gone.
func (r *resolver) user(p tracepoint.Place) []string {
	if !r.own || len(p.User) == 0 || r.users == 0 {
		return nil
	}
	r.users--
	addrs := slices.Clone(p.User)
	for i := range addrs[1:] {
		addrs[i+1]-- // the call, and not where it returns to
	}
	done := make(chan []string, 1)
	go func() {
		// debug/elf is not hardened against files that somebody made on purpose.
		defer func() {
			if recover() != nil {
				done <- nil
			}
		}()
		names, _ := symbol.Process(r.h.Proc.NSpid, string(r.h.Proc), p.Pid, addrs)
		done <- names
	}()
	late := time.NewTimer(perProgram)
	defer late.Stop()
	select {
	case names := <-done:
		return named(names)
	case <-late.C: // there is no way to take a read back
		r.users = 0
		return nil
	}
}

// named are the names that are known, as people write them.
func named(names []string) []string {
	var known []string
	for _, n := range names {
		if n != "" {
			known = append(known, demangle.Filter(n, demangle.NoParams, demangle.MaxLength(maxDemangled)))
		}
	}
	return known
}
