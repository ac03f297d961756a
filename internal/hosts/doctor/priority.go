package doctor

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// precedence is a nice value: its weight is about that of ten usual threads
// (sched_prio_to_weight, kernel/sched/core.c).
const precedence = -10

// RaisePriority gives all threads of this process precedence on busy CPUs: a look is short,
// and has to come about on a host whose CPUs somebody has taken. It is for a command
// that does nothing but look. Threads that are started later have it from those that
// start them. An error means that some have not got it, which needs a right
// (CAP_SYS_NICE); nothing else is amiss.
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
			return fmt.Errorf("take precedence: %w", err)
		}
	}
	return nil
}
