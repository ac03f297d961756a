package rule

import (
	"strconv"

	"holdfast/internal/hosts/doctor/fact"
)

func host(name string, v float64) fact.Fact { return fact.Fact{Name: name, Value: v} }

func group(name, g string, v float64) fact.Fact {
	return fact.Fact{Name: name, Value: v, Subject: fact.Subject{Cgroup: g}}
}

func device(name, d string, v float64) fact.Fact {
	return fact.Fact{Name: name, Value: v, Subject: fact.Subject{Device: d}}
}

func by(name string, v float64, s fact.Subject) fact.Fact {
	return fact.Fact{Name: name, Value: v, Subject: s}
}

// calls returns facts of an examination in which system calls were counted.
func calls(more ...fact.Fact) []fact.Fact {
	return append([]fact.Fact{host(fact.CallsSeen, 1), host(fact.GroupsSeen, 9)}, more...)
}

// inContainer is the group of a container as engines name it.
const inContainer = "/docker/0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// stuck returns facts of tasks in state D, for a time in seconds.
func stuck(n, over float64, group string, kernel ...string) []fact.Fact {
	s := fact.Subject{Cgroup: group, Pid: 7, Command: "df", Device: "nfs files.example:/a on /mnt", Kernel: kernel}
	return []fact.Fact{host(fact.StuckSeen, n), host(fact.HostLoad, 80), {Name: fact.Stuck, Value: n, Over: over, Subject: s}}
}

// saturated returns the facts of a disk from which one group reads 900 MiB/s, and another 2.
func saturated(busy, queue float64) []fact.Fact {
	return append(disk(5, busy, 50), device(fact.DiskQueue, "vda", queue), group(fact.DiskUse, web, 900<<20), group(fact.DiskUse, hogs, 2<<20))
}

// bound returns the facts of processes whose threads may not use every CPU.
func bound(busy float64, processes ...fact.Fact) []fact.Fact {
	return append(processes, host(fact.TasksSeen, 99), host(fact.CPUBusy, busy))
}

func bind(group, cpus string, waits float64) fact.Fact {
	return by(fact.ProcessBound, waits, fact.Subject{Cgroup: group, Pid: 7, Command: "db", Device: cpus})
}

// zombies returns the fact of zombies that have been there for a time in seconds.
func zombies(n, over float64, group string) fact.Fact {
	return fact.Fact{Name: fact.Zombies, Value: n, Over: over, Subject: fact.Subject{Cgroup: group, Pid: 7, Command: "entrypoint"}}
}

// spaces returns the facts of a group with mount namespaces, of which some are old.
func spaces(n, old, mounts float64) []fact.Fact {
	s := fact.Subject{Cgroup: hogs, Pid: 8, Device: hogs + "/inner"}
	return []fact.Fact{host(fact.HostMounts, 500), by(fact.GroupSpaces, n, s), by(fact.GroupSpacesOld, old, s), by(fact.GroupMounts, mounts, s)}
}

// traces returns the facts of a tracer and of a process that it stops.
func traces(rate float64, tracer, of fact.Subject, more ...fact.Fact) []fact.Fact {
	of.Device = strconv.Itoa(tracer.Pid)
	return append([]fact.Fact{host(fact.TasksSeen, 9), by(fact.Tracer, rate, tracer), by(fact.Traced, rate, of)}, more...)
}

// operator is a tracer of the host.
var operator = fact.Subject{Cgroup: "/user.slice", Pid: 9, Command: "strace"}

// visitor is operator as the tracer of a container.
var visitor = fact.Subject{Cgroup: "/user.slice", Pid: 9, Command: "strace", Device: inContainer}

var seenMerging = host(fact.MergingSeen, 1)

// profiled returns the facts of CPUs that are interrupted for samples at a rate.
func profiled(rate float64, more ...fact.Fact) []fact.Fact {
	return append([]fact.Fact{host(fact.ProfilerSeen, 1), host(fact.ProfilerSamples, rate)}, more...)
}

// monitor is the namespace of a monitor, or a limit that it reaches.
var monitor = fact.Subject{Cgroup: web, Pid: 7, Command: "monitor", Device: "net.ipv4.neigh.default.gc_thresh3"}

// sockets returns the facts of TCP sockets whose memory grows by the rate, and of their orphans.
func sockets(used, rate, orphans float64) []fact.Fact {
	return []fact.Fact{host(fact.SocketMemory, used), host(fact.SocketLimit, 1500<<20), host(fact.SocketOrphans, orphans), host(fact.MemTotal, 24<<30), host(fact.HostCPUs, 2), host(fact.SocketGrowth, rate), host(fact.SocketLow, rate/2)}
}

var seenHuge = host(fact.HugeSeen, 1)

// huge returns the settings of khugepaged, its passes and the pages that it builds each second.
func huge(sleep, batch, passes, built float64, more ...fact.Fact) []fact.Fact {
	return append([]fact.Fact{seenHuge, host(fact.HugeSleep, sleep), host(fact.HugeBatch, batch), host(fact.HugeScans, passes), host(fact.HugeBuilt, built)}, more...)
}

// drops returns the numbers of drops of the page cache and of slab.
func drops(pages, slab float64) []fact.Fact {
	return []fact.Fact{host(fact.CacheDrops, pages), host(fact.SlabDrops, slab)}
}

// dirty returns the limit of dirty memory of a host with so much memory.
func dirty(limit, memory float64, more ...fact.Fact) []fact.Fact {
	return append([]fact.Fact{host(fact.DirtyLimit, limit), host(fact.MemTotal, memory)}, more...)
}

// usual is a figure of the host's past.
func usual(name string, v float64) fact.Fact { return host(fact.Past+name, v) }

func word(name, text string) fact.Fact { return fact.Fact{Name: name, Text: text, Unit: fact.Word} }

var (
	logger = fact.Subject{Cgroup: web, Pid: 7, Command: "logger",
		Kernel: []string{"queue_work_on", "__lru_add_drain_all", "generic_fadvise", "ksys_fadvise64_64", "do_syscall_64"}}
	scanner   = fact.Subject{Cgroup: "/system.slice/scanner.service", Pid: 9, Command: "scanner"}
	other     = fact.Subject{Cgroup: hogs, Pid: 8, Command: "other"}
	locker    = fact.Subject{Pid: 9, Command: "db", Cgroup: web, Device: "/data/file"}
	watching  = fact.Subject{Pid: 9, Command: "editor", Cgroup: web, Device: "watches of user 0"}
	cron      = fact.Subject{Cgroup: "/system.slice/cron.service", Command: "sysctl", Kernel: []string{"__lru_add_drain_all", "drop_caches_sysctl_handler", "proc_sys_call_handler"}}
	churn     = fact.Subject{Cgroup: web, Pid: 7, Command: "cni", Device: "rtnl_mutex", Kernel: []string{"__mutex_lock", "rtnl_newlink"}}
	inode1    = fact.Subject{Cgroup: web, Pid: 7, Command: "a", Device: "lock 1", Kernel: []string{"rwsem_down_write_slowpath", "down_write", "path_openat"}}
	mapped    = fact.Subject{Cgroup: web, Pid: 7, Command: "db", Device: "lock 2", Kernel: []string{"rwsem_down_write_slowpath", "down_write_killable", "vm_mmap_pgoff"}}
	mapReader = fact.Subject{Cgroup: "/system.slice/exporter", Pid: 9, Command: "exporter", Device: "lock 2", Kernel: []string{"down_read_killable", "m_start", "seq_read_iter"}}
	inode2    = fact.Subject{Cgroup: hogs, Pid: 8, Command: "b", Device: "lock 1", Kernel: []string{"down_write", "path_openat"}}
)

// reads returns the facts of a disk's read-ahead, and of its reads.
func reads(ahead, rate, size float64) []fact.Fact {
	return []fact.Fact{device(fact.DiskReadAhead, "vda", ahead), device(fact.DiskReads, "vda", rate), device(fact.DiskReadSize, "vda", size)}
}

// closing returns the facts of connections in CLOSE-WAIT whose number grows by more a second.
func closing(n, more float64) []fact.Fact {
	return []fact.Fact{by(fact.Unclosed, n, other), by(fact.UnclosedMore, more, other)}
}

// shm returns the facts of a container's /dev/shm, the share in use and its growth a second.
func shm(used, more float64) []fact.Fact {
	s := other
	s.Device = "/dev/shm"
	return []fact.Fact{by(fact.MemoryDisk, used, s), by(fact.MemoryDiskMore, more, s)}
}

// reclaims returns the facts of a process of a group that reclaims memory rate times a second, and of
// a container that reads 900 pages/s again and has reached its limit hits times.
func reclaims(rate float64, by string, hits float64) []fact.Fact {
	s := fact.Subject{Cgroup: by, Pid: 7, Command: "senpai"}
	return []fact.Fact{{Name: fact.ReclaimBy, Value: rate, Subject: s}, group(fact.GroupRefaults, inContainer, 900), group(fact.GroupLimitHits, inContainer, hits)}
}
