package probe

import (
	"os"
	"path"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor/fact"
)

// waitedFor names the file or the mount that a stuck thread waits for, "" if it is unknown. It only
// reads the procfs and sysfs: any call on the mount itself would hang, too.
func waitedFor(h Host, t thread, w fact.Wait) string {
	file := fileOf(h, t)
	mounts := mountsFor(h, t, w.Types)
	if file != "" {
		for _, m := range mounts {
			if m.has(file) {
				return m.String() + ", file " + file
			}
		}
		return "file " + file
	}
	if len(w.Types) == 0 {
		return ""
	}
	mounts = slices.DeleteFunc(mounts, func(m mounted) bool { return m.idle(h) })
	switch len(mounts) {
	case 0:
		return ""
	case 1:
		return mounts[0].String()
	}
	return "one of " + strconv.Itoa(len(mounts)) + " mounts, for example " + mounts[0].String()
}

// mounted is a mount as mountinfo has it.
type mounted struct{ *mountinfo.Info }

func (m mounted) String() string { return m.FSType + " " + m.Source + " on " + m.Mountpoint }

// has reports whether a path is on the mount, or on one below it.
func (m mounted) has(file string) bool {
	return file == m.Mountpoint || strings.HasPrefix(file, strings.TrimSuffix(m.Mountpoint, "/")+"/")
}

// idle reports whether the mount is one of FUSE and no request waits for its server: the number in
// /sys/fs/fuse/connections (filesystems/fuse.rst). Without that file it may not be idle.
func (m mounted) idle(h Host) bool {
	n, err := number(path.Join(h.Sys, "fs/fuse/connections", strconv.Itoa(m.Minor), "waiting"))
	return strings.HasPrefix(m.FSType, "fuse") && err == nil && n == 0
}

// mountsFor returns a thread's mounts of these types, or all mounts of disks and servers if there
// are none, those with the longest paths first.
func mountsFor(h Host, t thread, types []string) []mounted {
	text, _ := read(t.dir(h) + "/mountinfo") // none if it has ended
	list, _ := mountinfo.GetMountsFromReader(strings.NewReader(text), func(m *mountinfo.Info) (skip, stop bool) {
		kind, _, _ := strings.Cut(m.FSType, ".") // fuse.sshfs
		return len(types) > 0 && !slices.Contains(types, kind), false
	})
	found := make([]mounted, 0, len(list))
	for _, m := range list {
		found = append(found, mounted{m})
	}
	sort.SliceStable(found, func(i, j int) bool { return len(found[j].Mountpoint) < len(found[i].Mountpoint) })
	return found
}

// fileOf returns the path of the file that a thread's system call acts on, "" if it is unknown:
// the first argument of proc_pid_syscall(5), for the calls of which that is a file descriptor.
func fileOf(h Host, t thread) string {
	text, err := read(t.dir(h) + "/syscall")
	f := strings.Fields(text)
	if err != nil || len(f) < 2 {
		return ""
	}
	nr, err := strconv.Atoi(f[0])
	fd, err2 := strconv.ParseUint(strings.TrimPrefix(f[1], "0x"), 16, 64)
	if err != nil || err2 != nil || !slices.Contains(callsOnFiles(), nr) {
		return ""
	}
	to, _ := os.Readlink(t.dir(h) + "/fd/" + strconv.FormatUint(fd, 10)) // "" if it is closed
	if !strings.HasPrefix(to, "/") {
		return ""
	}
	return to
}

// callsOnFiles lists calls that wait for a file by its descriptor.
func callsOnFiles() []int {
	return []int{
		unix.SYS_READ, unix.SYS_WRITE, unix.SYS_READV, unix.SYS_WRITEV, unix.SYS_PREAD64, unix.SYS_PWRITE64, unix.SYS_FSYNC,
		unix.SYS_FDATASYNC, unix.SYS_SYNCFS, unix.SYS_SYNC_FILE_RANGE, unix.SYS_FSTAT, unix.SYS_FSTATFS, unix.SYS_GETDENTS64,
		unix.SYS_FTRUNCATE, unix.SYS_FALLOCATE, unix.SYS_CLOSE,
	}
}
