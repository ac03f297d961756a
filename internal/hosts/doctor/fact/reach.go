package fact

// Reach is what a system call does to processes other than its caller.
type Reach struct {
	// Rate is the number of calls a second from which others notice it. Orders of
	// magnitude: a judgement.
	Rate float64
	Does string // "interrupts the other CPUs"
}

// ReachOf returns the reach of a call by its name. It reports false for a call that only
// costs its caller's time. Source: the manual page of each call, section 2, and
// Documentation/filesystems/directory-locking.rst for renames.
func ReachOf(name string) (Reach, bool) {
	const (
		interrupts = "interrupts the other CPUs on which the program's threads run"
		mounts     = "holds the lock of all mounts, and waits for all CPUs"
		makes      = "makes and ends a process, under the lock of all processes"
		inode      = "holds a lock of the file system or of a file"
	)
	r, ok := map[string]Reach{
		"sync":              {5, "writes every file system of the host to its disk"},
		"syncfs":            {20, "writes a whole file system to its disk"},
		"membarrier":        {100, "waits for all CPUs, or interrupts them"},
		"sched_setaffinity": {1000, "stops a CPU to move a thread"},
		"mount":             {200, mounts},
		"umount2":           {200, mounts},
		"move_mount":        {200, mounts},
		"unshare":           {50, "makes namespaces; a network's is removed under a lock of all networks"},
		"fork":              {500, makes},
		"vfork":             {500, makes},
		"clone":             {500, makes},
		"clone3":            {500, makes},
		"rename":            {2000, inode},
		"renameat":          {2000, inode},
		"renameat2":         {2000, inode},
		"flock":             {20_000, inode},
		"inotify_add_watch": {2000, "waits for all CPUs when the watch goes"},
		"inotify_rm_watch":  {2000, "waits for all CPUs when the watch goes"},
		"mprotect":          {10_000, interrupts},
		"munmap":            {10_000, interrupts},
		"madvise":           {10_000, interrupts},
		"mremap":            {10_000, interrupts},
		"perf_event_open":   {20, "waits for all CPUs"},
		"delete_module":     {1, "stops all CPUs"},
		"finit_module":      {1, "stops all CPUs"},
		"mlockall":          {20, "drains the lists of pages of all CPUs"},
	}[name]
	return r, ok
}
