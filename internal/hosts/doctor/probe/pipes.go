package probe

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	// pipePages is the number of pages that a new pipe may have; they count for its user, pipe(7).
	pipePages = 16
	// enlargedFrom is the number of pipes from which their sizes are read. By default a pipe has
	// at most 256 pages (pipe-max-size), and its user 16,384 (pipe-user-pages-soft).
	enlargedFrom = 32
	// enlargedMost is the number of pipes whose sizes are read; the others have their mean.
	enlargedMost = 256
)

// pagesOf returns how many pages a process's pipes may have. It is the same for an end of a pipe
// that a program has enlarged with F_SETPIPE_SZ.
func pagesOf(h Host, pid int, descriptors []string) float64 {
	n := float64(len(descriptors))
	if len(descriptors) < enlargedFrom || string(h.Proc) != "/proc" {
		return n * pipePages
	}
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return n * pipePages // it has ended
	}
	defer unix.Close(process)
	bytes, read := 0.0, 0.0
	for _, name := range descriptors[:min(len(descriptors), enlargedMost)] {
		if size, ok := pipeSize(process, name); ok {
			bytes += float64(size)
			read++
		}
	}
	if read == 0 { // before Linux 5.6, or without the right to trace the process
		return n * pipePages
	}
	return n * bytes / read / float64(os.Getpagesize())
}

// pipeSize returns the size of a pipe in bytes. It duplicates the descriptor: opening its file
// would make this process one more reader or writer.
func pipeSize(process int, descriptor string) (int, bool) {
	n, err := strconv.Atoi(descriptor)
	if err != nil {
		return 0, false
	}
	fd, err := unix.PidfdGetfd(process, n, 0)
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	size, err := unix.FcntlInt(uintptr(fd), unix.F_GETPIPE_SZ, 0)
	return size, err == nil
}
