package profile

import (
	"strings"

	"holdfast/internal/platform/linux/perf"
	"holdfast/internal/platform/linux/perf/symbol"
	"holdfast/internal/platform/linux/perf/unwind"
)

// calls returns the innermost address of a sample in user space and the calls that led to
// it. It walks the copy of the stack by the tables of the mapped files, and completes an
// incomplete walk by that of the kernel.
func (t *tracker) calls(p *process, r *perf.Record, group uint64) []uint64 {
	byPointers := unwind.Calls(r.User)
	if r.Stack == nil || p == nil {
		return byPointers
	}
	calls, whole := t.walker.Walk(r.Stack, func(pc uint64) (*unwind.Table, uint64, bool) {
		at, ok := t.place(p, r.Pid, group, pc)
		if !ok {
			return nil, 0, false
		}
		return t.table(at.file), at.at, true
	})
	if whole {
		return calls
	}
	return unwind.Join(calls, byPointers)
}

// table returns the tables of a file, nil for code without any.
func (t *tracker) table(i int) *unwind.Table {
	f := &t.files[i]
	if f.jit || !strings.HasPrefix(f.path, "/") && f.path != symbol.VDSO {
		return nil
	}
	if table, ok := t.tables.Known(i); ok {
		return table
	}
	return t.load(*f, i)
}

// load is apart from table, because its func takes memory at each call.
func (t *tracker) load(f file, i int) *unwind.Table {
	procfs := string(t.proc)
	return t.tables.Get(i, func() (unwind.File, error) { return openProgram(procfs, f, nil) })
}
