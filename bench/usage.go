package bench

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
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

// Memory is that of some processes, in bytes. In PSS (proc_pid_smaps(5)) a page that several
// processes map counts in parts.
type Memory struct {
	Processes int    `json:"processes"`
	PSS       uint64 `json:"pss"`
	RSS       uint64 `json:"rss"`
}

// Add adds a process, if it has not ended.
func (m *Memory) Add(pid int) error {
	p, err := procfs.NewProc(pid)
	var of procfs.ProcSMapsRollup
	if err == nil {
		of, err = p.ProcSMapsRollup()
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	m.Processes, m.PSS, m.RSS = m.Processes+1, m.PSS+of.Pss, m.RSS+of.Rss
	return nil
}
