package guardian

import (
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// socketFD is the guardian's end of the socket: the first extra file of
// exec.Cmd.
const socketFD = 3

// Main is a guardian's whole life, in the process that Start made. dir is where
// its plans are written down, "" for nowhere. It returns the exit code.
func Main(dir string, log *slog.Logger) int {
	settle()
	s, err := newServer(dir, log)
	if err == nil {
		err = s.run()
	}
	if err != nil {
		log.Error("guardian: " + err.Error())
		return 1
	}
	return 0
}

// settle makes the process small and hard to disturb. What fails here would
// only have made it better.
func settle() {
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGPIPE)
	debug.SetGCPercent(20)
	debug.SetMemoryLimit(16 << 20)
	// It runs for moments, but then at once, also beside a fork bomb, and it
	// is the last process to be killed for memory (proc_pid_oom_score_adj(5)).
	_ = unix.Setpriority(unix.PRIO_PGRP, 0, -20)
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0)
	closeInherited()
}

// closeInherited closes what came from the starter by accident: descriptors
// without close-on-exec, such as the end of some pipeline's pipe. The runtime's
// own are anonymous inodes.
func closeInherited() {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= socketFD {
			continue
		}
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && !strings.HasPrefix(to, "anon_inode:") {
			unix.Close(fd)
		}
	}
}
