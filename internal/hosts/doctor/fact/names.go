package fact

import "time"

// The names of facts. The part before the dot is the probe. Facts about control groups
// have the group as their subject.
const (
	KernelRelease = "host.kernel"      // word: uname -r
	HostUptime    = "host.uptime"      // s
	HostCPUs      = "host.cpus"        // online
	HostWindow    = "host.window"      // s, duration of the examination
	HostThreads   = "host.threads"     // number of threads
	HostMaxPids   = "host.max_pids"    // kernel.pid_max
	HostMaxTasks  = "host.max_threads" // kernel.threads-max
	HostFiles     = "host.files"       // open file handles
	HostMaxFiles  = "host.max_files"
	HostLoad      = "host.load"   // load average of the last minute
	HostMounts    = "host.mounts" // mounts in the namespace of init

	MemTotal      = "memory.total"        // B
	MemKept       = "memory.kept_free"    // share of memory that kswapd keeps free: the high watermarks of all zones
	MemHuge       = "memory.huge_unused"  // share of memory in huge pages that no program has reserved or uses: vm.nr_hugepages
	SlabTotal     = "memory.slab"         // B
	SlabReclaim   = "memory.slab_reclaim" // B, of memory.slab
	MemPSIFull    = "memory.psi_full"     // share of the examination in which all tasks were stalled
	AllocStalls   = "memory.alloc_stalls" // /s: allocations that had to reclaim memory themselves
	CompactStalls = "memory.compact_stalls"
	HighOrderFree = "memory.high_order_free" // free blocks of 2 MiB and more, by zone
	SlabCache     = "slab.bytes"             // B, by cache: the largest caches

	DentryTotal    = "dentry.total"
	DentryNegative = "dentry.negative"
	DentryBytes    = "dentry.negative_bytes" // B used by negative dentries

	MemcgCounted = "memcg.counted"     // memory cgroups that the kernel counts
	MemcgLiving  = "memcg.living"      // memory cgroups with a directory
	MemcgDying   = "memcg.dying"       // memory cgroups without a directory
	MemcgVersion = "memcg.version"     // 1 or 2: the hierarchy with the memory controller
	MemcgUnder   = "memcg.dying_under" // dying groups directly below a living one; v2 only
	MemcgPins    = "memcg.pins"        // B of pages charged to dying groups, below a living group without processes
	MemcgLeft    = "memcg.left"        // groups that an agent saw removed and not released, by the living group or container above them; v1 only
	ReclaimP50   = "reclaim.p50"       // ms: half of the reclaims of memory cgroups took longer
	ReclaimP99   = "reclaim.p99"       // ms
	ReclaimSlow  = "reclaim.slow_rate" // /s: reclaims of memory cgroups that took over 1 ms
	ReclaimBy    = "reclaim.by"        // /s: reclaims of memory cgroups by a process
	ReclaimCalls = "reclaim.calls"     // in the examination
	PinnedPages  = "pinned.bytes"      // B locked by a process and charged to a group without tasks

	NamesSeen      = "namespace.seen"              // number of namespaces that were read
	Mounts         = "namespace.mounts"            // mounts, by mount namespace other than the host's
	Segments       = "namespace.segments"          // share of the System V shared memory segments, by IPC namespace
	Queues         = "namespace.queues"            // share of the POSIX message queues, by IPC namespace
	Semaphores     = "namespace.semaphores"        // share of the System V arrays of semaphores, by IPC namespace
	Messages       = "namespace.messages"          // share of the System V message queues, by IPC namespace
	Unclosed       = "namespace.close_wait"        // connections in CLOSE-WAIT at both ends of the observation, by network namespace
	UnclosedMore   = "namespace.close_wait_growth" // /s: growth of their number
	TimeWait       = "namespace.time_wait"         // share of tcp_max_tw_buckets, by network namespace
	HalfOpenDrops  = "namespace.half_open"         // /s: handshakes that a full queue of half-open connections answered with a cookie or refused
	Fragments      = "namespace.fragments"         // share of the memory for IP fragments that wait for the rest, by network namespace
	MemoryDisk     = "namespace.tmpfs"             // share of a tmpfs of a container that is full, from 30 % on, by its mount point
	MemoryDiskMore = "namespace.tmpfs_growth"      // /s: growth of that share
	Ports          = "namespace.ports"             // share of the local ports in use towards one address, by network namespace
	DatagramDrops  = "namespace.udp_drops"         // /s: datagrams for which the receiver's buffer had no space, by network namespace
	DatagramMemory = "namespace.udp_memory"        // /s: datagrams for which the memory of all UDP sockets had no space, by network namespace
	UnixWaiting    = "namespace.unix_waiting"      // connections to a Unix socket that wait for an accept at both ends of the observation, by its path
	ListenDrops    = "namespace.overflows"         // /s: connections that a full accept queue refused, by network namespace
	Retransmits    = "namespace.retransmits"       // /s: TCP segments with data that were sent again, by network namespace
	RetransShare   = "namespace.retransmit_share"  // their share of the segments sent; only of namespaces that sent some again
	Unanswered     = "namespace.handshakes_again"  // /s: handshakes of TCP that were sent again because no answer came
	Packets        = "namespace.packets"           // /s: packets received, by network namespace
	ProcessFiles   = "process.files"               // share of a process's own limit of open files, of those that use over half

	GroupSpaces    = "namespace.of_group"     // mount namespaces of the processes of a group, with one of them, of those with many; the device is the group, which may be one in a container
	GroupSpacesOld = "namespace.of_group_old" // those of them that existed when the examination began
	GroupMounts    = "namespace.group_mounts" // their mounts, summed

	HeldMounts = "process.held_mounts" // mount namespaces that a process keeps open, of those with many
	LimitsSeen = "limit.seen"          // number of limits that all containers share and that were read
	UserLimit  = "limit.user"          // share of a user's limit on a kind of open files, likewise; only over half
	LimitUsed  = "limit.used"          // share of one of them, by its name for sysctl, with the process that has most; only over half

	StuckSeen = "stuck.seen"    // number of threads that were in state D for the whole observation; those of the kernel are left out
	Stuck     = "process.stuck" // the same by group and place in the kernel, with one of them; its device is what they wait for

	StopsSeen   = "stops.seen"         // 1: signals were observed
	Stops       = "process.stops"      // signals SIGSTOP that a process sent to those of a container of another group; the device is that group
	Freezes     = "group.freezes"      // changes of a container between frozen and thawed, in samples
	FrozenShare = "group.frozen_share" // share of the samples in which it was frozen

	Zombies = "process.zombies" // processes that ended and that nothing reaped in the examination: of a container, or outside containers of a parent, with the parent that has most

	FilesGrown     = "process.files_grown"   // share of its limit of open files, of a process whose number grows
	FilesGrowth    = "process.files_growth"  // growth of that share, 1/s
	MapsGrown      = "process.maps_grown"    // share of vm.max_map_count, of a process whose mappings grow
	MapsGrowth     = "process.maps_growth"   // growth of that share, 1/s
	LockCycle      = "process.lock_cycle"    // processes of a group that wait for each other's file locks, at both ends, with one of them
	LockWaits      = "process.lock_waits"    // share of the samples in which a container, the device, waited for a file lock that the subject, of another group, held
	SocketWaits    = "process.unix_waits"    // threads of a group that waited at both ends for room in the queue of a Unix socket, with one of them
	PipeWaits      = "process.pipe_waits"    // threads of a group that waited for room in a pipe for the whole observation, with one of them
	QueueBytes     = "namespace.queue_bytes" // share of kernel.msgmnb in the fullest System V message queue of an IPC namespace
	Unread         = "process.unread"        // B of inotify events that a process does not read
	FileSize       = "process.file_size"     // share of RLIMIT_FSIZE that the largest file has that a process writes, of those with over half
	ProcessLocked  = "process.locked"        // share of RLIMIT_MEMLOCK, of the processes that use over half
	ProcessMapped  = "process.mapped"        // share of RLIMIT_AS, of the processes that use over half
	LockHeld       = "process.lock_held"     // tasks that wait for a file lock whose holder, the subject, is stopped
	ProcessMaps    = "process.mappings"      // share of vm.max_map_count, of the processes that use over half
	NeighbourSoft  = "neighbour.soft"        // entries of a table of neighbours for each one of its gc_thresh2, by the name of its limit
	NeighbourGC    = "neighbour.gc"          // /s: times that the kernel removed entries to make room
	NeighbourDrops = "neighbour.drops"       // /s: entries for which there was no room

	SocketMemory  = "socket.memory"     // B in the sockets of TCP, of all namespaces
	SocketLimit   = "socket.limit"      // B of it from which the kernel slows down all connections: tcp_mem
	SocketGrowth  = "socket.growth"     // B/s, only if it grew all the time
	SocketLow     = "socket.growth_low" // B/s in the third of the examination in which it grew least
	SocketOrphans = "socket.orphans"    // share of tcp_max_orphans: connections that no process has
	SocketQueued  = "socket.queued"     // B that wait in the sockets of a network namespace, only while it is much or grows
	SocketLeft    = "socket.left"       // B of them in sockets that no process has

	MergingSeen    = "merging.seen"    // 1: it was observed, or does not run
	MergingCPU     = "merging.cpu"     // share of one CPU that ksmd used
	MergingScanned = "merging.scanned" // pages a second that it compared
	MergingBy      = "merging.by"      // B that a process offers for merging, by process; only while ksmd is busy

	HugeSeen   = "hugepages.seen"     // 1: khugepaged was observed, or does not run
	HugeCPU    = "hugepages.cpu"      // share of one CPU that khugepaged used
	HugeScans  = "hugepages.passes"   // /s: its passes over the memory of all programs
	HugeAlways = "hugepages.always"   // 1 if programs get huge pages that do not ask for them
	HugeFaults = "hugepages.faults"   // huge pages that page faults took and the kernel cleared
	HugeBuilt  = "hugepages.built"    // /s: huge pages that it built
	HugeSleep  = "hugepages.sleep"    // ms between two of its searches: scan_sleep_millisecs
	HugeBatch  = "hugepages.searched" // pages of a search: pages_to_scan

	CacheDrops = "caches.drops"      // times in the examination that a program made the kernel drop its page cache
	SlabDrops  = "caches.slab_drops" // the same for dentries, inodes and other slab
	DropsBy    = "caches.dropped_by" // of both, those that the kernel's log shows, by process; one that has ended has a command only

	DirtyLimit      = "dirty.limit"      // B of memory that may be dirty before writers wait for the disks
	DirtyBytes      = "dirty.bytes"      // B: vm.dirty_bytes, if it is in force
	DirtyExpire     = "dirty.expire"     // s after which dirty memory is written: vm.dirty_expire_centisecs
	DirtyRatio      = "dirty.ratio"      // share: vm.dirty_ratio, if it is in force
	DirtyNear       = "dirty.near"       // share of the looks at which so much was dirty that writers waited; only while the limit is small
	DirtyWaits      = "dirty.waits"      // share of the examination in which a task waited for disks; likewise
	TracingSeen     = "tracing.seen"     // instances of the kernel's tracing that are on
	TraceEvents     = "tracing.events"   // /s: events that an instance of the kernel's tracing records, by its directory
	ProfilerSeen    = "profiler.seen"    // 1: it is known how often performance events interrupt the CPUs
	ProfilerSamples = "profiler.samples" // /s on the CPU with most: interrupts of performance events; only if there are many
	ProfilerBy      = "profiler.by"      // /s of them by the process that opened the events, if it is known; only if there are many
	ProfilerEvents  = "profiler.events"  // number of performance events that a process has open; only if there are many interrupts

	InotifySeen = "inotify.users" // number of users with inotify instances
	Inotify     = "inotify.used"  // share of a user's limit, by kind and user, with the process that uses most

	Scanners        = "fanotify.scanners" // processes that the kernel asks for permission when files are opened or read
	FanotifyHeld    = "fanotify.held"     // share of the samples in which they held up a thread for over 1 ms; only if there are any
	FanotifyWait    = "fanotify.wait"     // the same for the threads of a group, with one of its processes
	FanotifyBy      = "fanotify.writes"   // /s, by each of them: writes, of which each answer is one
	FanotifyCPUWait = "fanotify.cpu_wait" // share of that time for which the thread of each that waited most for a CPU did

	GroupsSeen      = "group.seen"           // number of groups with figures
	TasksSeen       = "process.seen"         // number of threads with figures
	GroupCPU        = "group.cpu"            // share of one CPU that a group used
	GroupsCPU       = "group.cpu_all"        // share of one CPU that all groups used, including those that came and went
	GroupSystem     = "group.system"         // share of its CPU time spent in the kernel
	GroupWait       = "group.cpu_wait"       // share of the examination for which its threads waited for a CPU, summed
	GroupLongest    = "group.cpu_longest"    // the same for the thread that waited most
	GroupLasting    = "group.cpu_lasting"    // share of one CPU that its threads used which ran for the whole examination
	GroupYoungWait  = "group.cpu_young_wait" // the waits for a CPU of threads that began during the examination, divided by their CPU time
	ProcessCPU      = "process.cpu"          // share of one CPU, of the processes that use most
	ProcessBound    = "process.bound"        // share of the examination for which a thread waited that may not use every CPU, by process; its device names the CPUs
	Tracer          = "process.tracer"       // /s: at most as often do the threads that a process traces stop for it, ptrace(2); only if they run often
	TracerStops     = "process.tracer_stops" // /s: stops of a container's processes for a tracer in another group, counted by the kernel; the device is the container's group
	Traced          = "process.traced"       // /s: how often threads of a traced process begin to run; the device is the pid of the tracer
	GroupPeriods    = "group.periods"        // CFS periods in the examination
	GroupThrottled  = "group.throttled"      // share of them in which it was throttled
	AbovePeriods    = "above.periods"        // the same of a group above containers; the device is its path
	AboveThrottled  = "above.throttled"
	AboveContainers = "above.containers" // containers below it
	GroupLimitHits  = "group.limit_hits" // /s: charges that hit the group's own memory limit
	GroupLimit      = "group.limit"      // B, only if there is a limit: on v2 the lower one of memory.max and memory.high
	GroupUsage      = "group.usage"      // B
	GroupPeak       = "group.peak"       // B: the most of group.usage since the group was made
	GroupRefaults   = "group.refaults"   // /s: pages read again soon after they were reclaimed
	GroupMemoryFull = "group.memory_full"
	GroupKernelMem  = "group.kernel_memory"  // B of kernel memory, most of it slab
	GroupOOMKills   = "group.oom_kills"      // processes killed for the group's memory limit in the examination
	OOMKilled       = "oom.killed"           // the same in the last ten minutes, also of containers that have ended, with the last process; over is the time since
	HostOOMKilled   = "oom.host_killed"      // the same, because the host had no memory left
	MemoryAvailable = "memory.available"     // B that programs can take without swapping (MemAvailable of /proc/meminfo)
	GroupHeld       = "group.held"           // B of memory that cannot be reclaimed: anonymous and shared, on cgroup v2 also the kernel's
	GroupGrowth     = "group.growth"         // B/s: growth of group.held, only if it grew all the time
	GroupGrowthLow  = "group.growth_low"     // B/s in the third of the examination in which it grew least
	GroupGrowthHigh = "group.growth_high"    // B/s in the third in which it grew most
	DiskLimitUsed   = "group.disk_limit"     // share of a limit on a disk that its rate reaches, the highest; of a group above containers, the device is its path
	GroupPids       = "group.pids"           // share of pids.max in use, only if there is a limit
	GroupPidsGrowth = "group.pids_growth"    // growth of that share, 1/s, if there are 20 more
	GroupWrites     = "group.writes"         // /s: writes that reached a disk
	GroupIOFull     = "group.io_full"        // share of the examination in which the whole group waited for disks
	CPUBusy         = "cpu.busy"             // share of all CPUs' time that was not idle
	CPUFull         = "cpu.full"             // share of the examination in which, by samples every 100 ms, over 95 % of the CPUs' time was in use
	GroupCPUFull    = "group.cpu_full"       // share of the examination in which it used over 30 % of all CPUs in such a run of samples
	GroupCPUBursts  = "group.cpu_bursts"     // such runs of 250 ms or more
	CPUSome         = "cpu.psi_some"         // share of the examination in which a task waited for a CPU
	CPUSteal        = "cpu.steal"            // share of all CPUs' time that the hypervisor used otherwise
	CPUSoftirq      = "cpu.softirq"          // share, by CPU
	SoftirqsNet     = "cpu.softirqs_network" // /s
	SoftirqsDisk    = "cpu.softirqs_disk"    // /s
	CPUThermal      = "cpu.thermal"          // /s: times that a core slowed down because it was too hot
	NetDrops        = "net.drops"            // packets in the examination: the CPU's backlog was full

	Drains         = "drains.rate"           // /s: work items that drain a CPU's LRU batches
	DrainsBy       = "drains.by"             // /s, by process and kernel path
	LockWait       = "lock.wait"             // share of the examination spent waiting for a lock, by place
	RtnlWait       = "lock.rtnl"             // the same for the rtnl mutex
	LockSeen       = "lock.seen"             // 1: locks were observed
	RstatWaits     = "rstat.waits"           // /s: waits for the lock of cgroup statistics
	RstatBy        = "rstat.by"              // /s, by process
	DiskFree       = "disk.free"             // B, by file system
	DiskInodes     = "disk.free_inodes"      // by file system; btrfs has no limit
	DiskGrowth     = "disk.growth"           // B/s by which disk.free shrank, only if it shrank all the time
	DiskGrowthLow  = "disk.growth_low"       // B/s in the third of the examination in which it shrank least
	InodeGrowth    = "disk.inode_growth"     // /s: the same for disk.free_inodes
	InodeGrowthLow = "disk.inode_growth_low" // /s
	WrittenBy      = "disk.written"          // B/s written to files, by group, with its process that wrote most; only while a file system fills
	InodesBy       = "disk.inodes_made"      // /s by process; only while a file system fills
	LogsSeen       = "log.seen"              // number of logs of containers that were found
	LogGrowth      = "log.growth"            // B/s by which the engine's log of a container grows
	EnginesSeen    = "engine.seen"           // number of Unix sockets of engines that were found
	Starts         = "engine.starts"         // /s: containers, and commands in containers, that were seen to start
	ClientBusy     = "engine.client"         // share of the examination in which programs of a group had new connections to an engine
	DiskBy         = "disk.requests"         // /s: writes and flushes that a process itself sent to the disks
	DiskP99        = "disk.p99"              // ms from issue to completion, all disks
	DiskAwait      = "disk.await"            // ms, mean over the examination, by disk
	DiskBusy       = "disk.busy"             // share of the examination, by disk
	DiskQueue      = "disk.queue"            // requests outstanding, mean over the examination, by disk
	DiskReads      = "disk.reads"            // /s: of a busy disk
	DiskReadSize   = "disk.read_size"        // B: the mean of its reads
	DiskReadAhead  = "disk.read_ahead"       // B: read-ahead of a busy disk, by its settings
	DiskRequest    = "disk.request"          // B: the largest request that the settings of a busy disk allow
	DiskRequestMax = "disk.request_max"      // B: the largest that its hardware accepts
	DiskUse        = "disk.use"              // B/s that a group reads from disks and writes to them, with its process that does most; only while a disk is busy
	DiskFlush      = "disk.flushes"          // /s, by disk
	DiskFlushing   = "disk.flushing"         // share of the examination in which a flush was outstanding, by disk
	IOFull         = "disk.psi_full"         // share of the examination in which all tasks were stalled
	ConnTables     = "conntrack.tables"      // network namespaces with a connection tracking table
	Conntrack      = "conntrack.used"        // share of the table, by network namespace
	ConnDrops      = "conntrack.drops"       // connections dropped in the examination, by network namespace
	ConnUser       = "conntrack.user"        // share of the entries of the host's table that are from or to one container or process; only while the table is half full
	AllocMs        = "alloc.touch"           // ms of CPU to map and touch 128 MiB in a separate cgroup
	AllocWall      = "alloc.wall"            // ms of wall time for the same
	CheckCPU       = "machine.cpu"           // MiB/s of SHA-256 on one thread, by its CPU time
	CheckMem       = "machine.memory"        // MiB/s copied on one thread, by its CPU time
	CheckDisk      = "machine.disk_sync"     // ms, median of small writes with fdatasync
	CheckRead      = "machine.disk_read"     // ms, median of random reads of 4 KiB with O_DIRECT
	BaseSystem     = "baseline.system"       // share of CPU time in the kernel on a healthy host
	BaseDisk       = "baseline.disk_p99"     // ms
	CallsSeen      = "syscalls.seen"         // 1: system calls were counted
	Calls          = "syscalls.rate"         // /s by control group
	CallsReach     = "syscalls.reach"        // /s by control group and call, of the calls that affect other processes
	CallsBy        = "syscalls.by"           // /s by process and call, for the groups that make most calls
)

// FillsWithin is the time within which a file system is full at its present growth for its
// writers to be counted, and named.
const FillsWithin = 3 * time.Hour

// Past is the prefix of the names of facts about this host's own past: past.machine.cpu is the
// median of earlier tests of the raw machine.
const Past = "past."

// Names of facts that only the continuous examination of an agent measures.
const (
	ConnHost       = "conntrack.host"   // share of the connection tracking table of the host's namespace that is in use
	GroupsRemoved  = "cgroups.removed"  // /s: control groups whose directory was removed, in all hierarchies
	GroupsReleased = "cgroups.released" // /s: control groups that the kernel released; if lower than the rate of removals, groups stay as dying groups
)
