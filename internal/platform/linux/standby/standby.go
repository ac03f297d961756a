// Package standby prepares a process that stands by for another: small, protected
// from signals and memory pressure, and without the starter's descriptors.
package standby

import (
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// memoryLimit is Go's soft memory limit, in bytes.
const memoryLimit = 16 << 20

// Settle makes a process survive signals and memory pressure: it does what Detach does,
// and raises the process's priority above all others. Failures are ignored.
func Settle(keep int, term chan<- os.Signal) {
	Detach(keep, term)
	debug.SetGCPercent(20)
	debug.SetMemoryLimit(memoryLimit)
	// The process runs rarely, but then it has to run at once, even beside a fork
	// bomb. It is the last process that the OOM killer selects
	// (proc_pid_oom_score_adj(5)).
	_ = unix.Setpriority(unix.PRIO_PGRP, 0, -20)
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0)
}

// Detach ignores the signals of a terminal or a service manager, and closes inherited
// descriptors above keep. SIGTERM is ignored if term is nil; else it is sent to term.
func Detach(keep int, term chan<- os.Signal) {
	// SIGUSR1 and SIGUSR2 are for agents: `systemctl kill -s SIGUSR2` sends them
	// to every process of the unit.
	signal.Ignore(unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGPIPE, unix.SIGUSR1, unix.SIGUSR2)
	if term == nil {
		signal.Ignore(unix.SIGTERM)
	} else {
		signal.Notify(term, unix.SIGTERM)
	}
	closeInherited(keep)
}

// closeInherited closes descriptors that the starter has left open without
// close-on-exec, such as the end of a pipe. The Go runtime's own descriptors are
// anonymous inodes.
func closeInherited(keep int) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= keep {
			continue
		}
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && !strings.HasPrefix(to, "anon_inode:") {
			unix.Close(fd)
		}
	}
}

// LockMemory locks present and future pages in memory (mlockall(2)), with MCL_ONFAULT
// because Go reserves many pages that it never touches. It also locks the program, as
// LockProgram does.
func LockMemory() error {
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT); err != nil {
		return fmt.Errorf("mlockall: %w", err)
	}
	return LockProgram()
}

// LockProgram reads the whole program of this process into memory and keeps it there
// (mlock(2)): its disk may hang or be slow when a page is needed later. Other processes
// of the same file share those pages.
func LockProgram() error {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return err
	}
	for _, r := range programRanges(string(maps)) {
		if _, _, err := unix.Syscall(unix.SYS_MLOCK, uintptr(r.from), uintptr(r.to-r.from), 0); err != 0 {
			return fmt.Errorf("mlock: %w", err)
		}
	}
	return nil
}
