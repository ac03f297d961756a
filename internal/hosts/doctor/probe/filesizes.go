package probe

import (
	"context"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor/fact"
)

// fileSizes returns the share of its limit of a file's size that each process has in the largest file
// that it writes (RLIMIT_FSIZE, getrlimit(2)), of those with over half. Few processes have a limit.
func fileSizes(ctx context.Context, h Host) (found []fact.Fact) {
	pids, _ := h.Proc.Pids() // without a list no process is known
	for _, pid := range pids {
		if ctx.Err() != nil {
			break
		}
		limit, ok := softLimit(h, pid, "Max file size")
		if !ok {
			continue
		}
		if n := largestWritten(string(h.Proc) + "/" + strconv.Itoa(pid)); n > limit*limitsShown {
			found = append(found, fact.Fact{Name: fact.FileSize, Value: n / limit, Unit: fact.Share, Subject: processOf(h, pid)})
		}
	}
	return largest(found, shownProcesses)
}

// largestWritten returns the size of the largest file that a process has open for writing, in bytes, by
// the permissions of the links of proc_pid_fd(5). It asks no server of a network file system (AT_STATX_DONT_SYNC
// of statx(2)).
func largestWritten(dir string) (size float64) {
	d, err := os.Open(dir + "/fd")
	if err != nil {
		return 0 // it has ended
	}
	defer d.Close()
	names, _ := d.Readdirnames(maxOpen)
	for _, name := range names {
		path := dir + "/fd/" + name
		link, err := os.Lstat(path)
		if err != nil || link.Mode().Perm()&0o200 == 0 {
			continue
		}
		var st unix.Statx_t
		if unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE|unix.STATX_SIZE, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
			size = max(size, float64(st.Size))
		}
	}
	return size
}
