package bench

import (
	"fmt"
	"time"

	"github.com/prometheus/procfs"
)

// ProcessUsage returns a process's CPU time so far and its resident memory in bytes
// (proc_pid_stat(5)).
func ProcessUsage(pid int) (time.Duration, int64, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, 0, fmt.Errorf("read the usage of process %d: %w", pid, err)
	}
	stat, err := p.Stat()
	if err != nil {
		return 0, 0, fmt.Errorf("read the usage of process %d: %w", pid, err)
	}
	return time.Duration(stat.CPUTime() * float64(time.Second)), int64(stat.ResidentMemory()), nil
}
