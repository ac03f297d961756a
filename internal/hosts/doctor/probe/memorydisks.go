package probe

import (
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/proc"
)

// memoryDisk is the prefix of the values of file systems in memory, before their mount point.
const memoryDisk = "tmpfs "

// memoryDisksShown is the share of a file system in memory that is in use from which it is a fact.
const memoryDisksShown = 0.3

// resolveCached is RESOLVE_CACHED of include/uapi/linux/openat2.h.
const resolveCached = 0x20

// addMemoryDisks adds the share in use of each tmpfs with a size that is mounted writable in a
// process's mount namespace, such as /dev/shm; the text is its mountinfo, proc_pid_mountinfo(5).
func addMemoryDisks(s sample, dir, mountinfo string) {
	root := -1
	for line := range strings.Lines(mountinfo) {
		mount, of, isTmpfs := strings.Cut(line, " - tmpfs ")
		f := strings.Fields(mount) // 36 35 0:98 /root /point rw,nosuid …
		// Of a file system that is mounted in parts, such as /dev/null over /proc/kcore, the root counts.
		if !isTmpfs || len(f) < 6 || f[3] != "/" || !strings.HasPrefix(f[5], "rw") || !strings.Contains(of, "size=") || strings.Contains(f[4], `\`) {
			continue
		}
		if root < 0 {
			var err error
			if root, err = unix.Open(dir+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
				return // it has ended
			}
			defer unix.Close(root)
		}
		if share, ok := usedOfMount(root, f[4], f[0]); ok {
			s[memoryDisk+f[4]] = share
		}
	}
}

// usedOfMount returns the share of a mounted file system that is in use, if the path leads to the
// mount with this id. It does not wait for another file system: it follows no symbolic link and asks
// no server for a name (RESOLVE_CACHED of openat2(2), Linux 5.12).
func usedOfMount(root int, point, id string) (share float64, ok bool) {
	fd, err := unix.Openat2(root, strings.TrimPrefix(point, "/"), &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS | resolveCached,
	})
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	info, err := read("/proc/self/fdinfo/" + strconv.Itoa(fd))
	if is, _ := proc.Field([]byte(info), "mnt_id"); err != nil || is != id {
		return 0, false
	}
	var st unix.Statfs_t
	if unix.Fstatfs(fd, &st) != nil || st.Blocks == 0 {
		return 0, false
	}
	return 1 - float64(st.Bfree)/float64(st.Blocks), true
}

// memoryDiskFacts returns the file systems in memory of a mount namespace that are in use.
func memoryDiskFacts(before sample, after space, over time.Duration) (found []fact.Fact) {
	for key, share := range after.values {
		point, is := strings.CutPrefix(key, memoryDisk)
		if !is || share < memoryDisksShown {
			continue
		}
		s := after.subject
		s.Device = point
		found = append(found, fact.Fact{Name: fact.MemoryDisk, Value: share, Unit: fact.Share, Subject: s})
		if was, known := before[key]; known {
			found = append(found, fact.Fact{Name: fact.MemoryDiskMore, Value: (share - was) / over.Seconds(), Unit: fact.PerSecond, Subject: s})
		}
	}
	return found
}
