package probe

import (
	"context"
	"strconv"

	"holdfast/internal/platform/linux/proc"
)

// kernelThread returns the pid of a thread of the kernel by its name, 0 if none is visible: there is
// none, or this is a pid namespace other than the first. Those that the kernel starts at boot have low
// pids, which the list has first.
func kernelThread(ctx context.Context, h Host, name string) (int, error) {
	pids, err := h.Proc.Pids()
	if err != nil {
		return 0, err
	}
	for _, pid := range pids {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		if isKernelThread(h, pid, name) {
			return pid, nil
		}
	}
	return 0, nil
}

// isKernelThread reports whether a process is a thread of the kernel with a name. Other processes can
// have the same name.
func isKernelThread(h Host, pid int, name string) bool {
	text, err := read(string(h.Proc) + "/" + strconv.Itoa(pid) + "/stat")
	st, err2 := proc.ParseStat([]byte(text))
	return err == nil && err2 == nil && st.Kernel() && st.Comm == name
}

// ran reads the CPU time of a process, in seconds (Documentation/scheduler/sched-stats.rst). A kernel
// may have none.
func (s sample) ran(key string, h Host, pid int) {
	text, err := read(string(h.Proc) + "/" + strconv.Itoa(pid) + "/schedstat")
	if err != nil {
		return
	}
	if v, err := floats(text); err == nil && len(v) > 0 {
		s[key] = v[0] / 1e9
	}
}
