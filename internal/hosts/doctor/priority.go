package doctor

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// precedence is a nice value. Its weight is about that of ten normal threads
// (sched_prio_to_weight, kernel/sched/core.c).
const precedence = -10

// RaisePriority raises the priority of all threads of this process, so that a short
// examination completes on a host with busy CPUs. It is for a command that only runs the
// doctor. Threads that are started later inherit the priority. An error means that some
// threads keep their priority, for lack of CAP_SYS_NICE; the examination works
// nevertheless.
func RaisePriority() error {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, t := range threads {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			return err
		}
		if err := unix.Setpriority(unix.PRIO_PROCESS, tid, precedence); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("raise the priority: %w", err)
		}
	}
	return nil
}
