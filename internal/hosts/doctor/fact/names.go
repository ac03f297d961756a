package fact

// The names of facts. What comes before the point is the probe that gives them.
// Those about control groups carry the group as their subject.
const (
	KernelRelease = "host.kernel"   // word: uname -r
	HostUptime    = "host.uptime"   // s
	HostCPUs      = "host.cpus"     // online
	HostWindow    = "host.window"   // s that the look took
	HostThreads   = "host.threads"  // all threads there are
	HostMaxPids   = "host.max_pids" // the lower of kernel.pid_max and threads-max
	HostFiles     = "host.files"    // open file handles
	HostMaxFiles  = "host.max_files"
	HostMounts    = "host.mounts" // mounts of init's namespace

	MemTotal      = "memory.total"        // B
	SlabTotal     = "memory.slab"         // B
	SlabReclaim   = "memory.slab_reclaim" // B, of memory.slab
	MemPSIFull    = "memory.psi_full"     // share of the look in which all were stalled
	AllocStalls   = "memory.alloc_stalls" // /s: allocations that had to reclaim by themselves
	CompactStalls = "memory.compact_stalls"
	HighOrderFree = "memory.high_order_free" // free blocks of 2 MiB and more, by zone
	SlabCache     = "slab.bytes"             // B, by cache: the largest ones

	DentryTotal    = "dentry.total"
	DentryNegative = "dentry.negative"
	DentryBytes    = "dentry.negative_bytes" // B that negative dentries take

	MemcgCounted = "memcg.counted"     // memory cgroups that the kernel has
	MemcgLiving  = "memcg.living"      // of which a directory is left
	MemcgDying   = "memcg.dying"       // the rest
	MemcgVersion = "memcg.version"     // 1 or 2: of the hierarchy that has the controller
	MemcgUnder   = "memcg.dying_under" // dying groups right below a living one; v2 only
	MemcgPins    = "memcg.pins"        // B of pages that dead groups left under a living one without processes
	MemcgLeft    = "memcg.left"        // groups that were removed while an agent looked and have not gone, by the living one, or container, that they were under; v1 only
	ReclaimP50   = "reclaim.p50"       // ms: half of the memory cgroup reclaims took longer
	ReclaimP99   = "reclaim.p99"       // ms
	ReclaimCalls = "reclaim.calls"     // in the look
	PinnedPages  = "pinned.bytes"      // B locked by a process and charged to a group without tasks

	InotifySeen = "inotify.users" // users of whom inotify was counted
	Inotify     = "inotify.used"  // share of a user's limit, by kind and user, with the process that uses most

	GroupsSeen      = "group.seen"        // groups of which there are figures
	TasksSeen       = "process.seen"      // threads of which there are figures
	GroupCPU        = "group.cpu"         // share of one CPU that a group used
	GroupsCPU       = "group.cpu_all"     // share of one CPU that all groups used, also those that came and went
	GroupSystem     = "group.system"      // share of its CPU time that was the kernel's
	GroupWait       = "group.cpu_wait"    // share of the look that its threads waited for a CPU, in sum
	GroupLongest    = "group.cpu_longest" // the same of the thread that waited most
	ProcessCPU      = "process.cpu"       // share of one CPU, of the processes that use most
	GroupPeriods    = "group.periods"     // CFS periods in the look
	GroupThrottled  = "group.throttled"   // share of them in which it was throttled
	GroupLimitHits  = "group.limit_hits"  // /s: charges that hit its own memory limit
	GroupLimit      = "group.limit"       // B, only where there is one
	GroupUsage      = "group.usage"       // B
	GroupRefaults   = "group.refaults"    // /s: pages read again soon after they were reclaimed
	GroupMemoryFull = "group.memory_full"
	GroupKernelMem  = "group.kernel_memory" // B of kernel memory, most of it slab
	GroupPids       = "group.pids"          // share of pids.max in use, only where there is one
	GroupWrites     = "group.writes"        // /s: writes that reached a disk
	GroupIOFull     = "group.io_full"       // share of the look in which all of it waited for disks
	CPUBusy         = "cpu.busy"            // share of all CPUs' time that was not idle
	CPUSteal        = "cpu.steal"           // share of all CPUs' time that the hypervisor kept
	CPUSoftirq      = "cpu.softirq"         // share, by CPU
	NetDrops        = "net.drops"           // packets in the look: the CPU's backlog was full

	Drains     = "drains.rate"       // /s: work items that empty a CPU's LRU batches
	DrainsBy   = "drains.by"         // /s, by process and kernel path
	LockWait   = "lock.wait"         // share of the look that was spent waiting for a lock, by place
	RtnlWait   = "lock.rtnl"         // the same for the rtnl mutex
	LockSeen   = "lock.seen"         // 1: locks were looked at
	RstatWaits = "rstat.waits"       // /s: waits for the lock of cgroup statistics
	RstatBy    = "rstat.by"          // /s, by process
	DiskBy     = "disk.requests"     // /s: writes and flushes that a process handed to the disks by itself
	DiskP99    = "disk.p99"          // ms from issue to completion, all disks
	DiskAwait  = "disk.await"        // ms, mean of the look, by disk
	DiskBusy   = "disk.busy"         // share of the look, by disk
	DiskFlush  = "disk.flushes"      // /s, by disk
	IOFull     = "disk.psi_full"     // share of the look in which all were stalled
	ConnTables = "conntrack.tables"  // network namespaces with a table of connections
	Conntrack  = "conntrack.used"    // share of the table, by network namespace
	ConnDrops  = "conntrack.drops"   // connections lost in the look, by network namespace
	AllocMs    = "alloc.touch"       // ms of CPU to map and touch 128 MiB in a cgroup of its own
	AllocWall  = "alloc.wall"        // ms of wall time for the same
	CheckCPU   = "machine.cpu"       // MiB/s of SHA-256 on one thread, by its CPU time
	CheckMem   = "machine.memory"    // MiB/s copied on one thread, by its CPU time
	CheckDisk  = "machine.disk_sync" // ms, median of small writes with fdatasync
	BaseSystem = "baseline.system"   // share of CPU time in the kernel on a healthy host
	BaseDisk   = "baseline.disk_p99" // ms
	CallsSeen  = "syscalls.seen"     // 1: system calls were looked at
	Calls      = "syscalls.rate"     // /s by control group
	CallsBy    = "syscalls.by"       // /s by process and call, of the groups that make most
)
