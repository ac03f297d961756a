package bench

import (
	"fmt"
	"time"

	"github.com/prometheus/procfs"
)

// labCPU returns the CPU time so far of all processes that this process sees, and of their
// children that have ended and were waited for: in a lab those are the engines, the agents,
// the containers and the load, and nothing of the rest of the machine. The resolution is
// that of proc_pid_stat(5), 10 ms for each process. The kernel's threads are not included.
func labCPU() (time.Duration, error) {
	all, err := procfs.AllProcs()
	if err != nil {
		return 0, fmt.Errorf("read the CPU time of the lab: %w", err)
	}
	const tick = 10 * time.Millisecond // USER_HZ is 100 on all architectures of Go
	var sum time.Duration
	for _, p := range all {
		s, err := p.Stat()
		if err != nil {
			continue // it has ended
		}
		sum += time.Duration(s.UTime+s.STime) * tick
		sum += time.Duration(s.CUTime+s.CSTime) * tick
	}
	return sum, nil
}
