package rule

import (
	"fmt"
	"strings"
	"testing"

	"holdfast/internal/hosts/doctor/fact"
)

const (
	web  = "/docker/web"
	hogs = "/docker/bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

// Each case is a host as the rule sees it. want is the severity of the only finding, ""
// for none. culprit is part of the subject that the finding names.
var cases = []struct {
	rule, name string
	facts      []fact.Fact
	want       Severity
	culprit    fact.Subject
	text       string // expected anywhere in the finding
}{
	{"dying-cgroups", "a healthy host", []fact.Fact{host(fact.MemcgDying, 300), host(fact.MemcgLiving, 100), host(fact.MemTotal, 8<<30)}, "", fact.Subject{}, ""},
	{"dying-cgroups", "many, with many living", []fact.Fact{host(fact.MemcgDying, 2500), host(fact.MemcgLiving, 600), host(fact.MemTotal, 64<<30)}, "", fact.Subject{}, ""},
	{"dying-cgroups", "many, no reclaim", []fact.Fact{host(fact.MemcgDying, 2500), host(fact.MemcgLiving, 100), host(fact.MemTotal, 64<<30)}, Warning, fact.Subject{}, "2,500"},
	{"dying-cgroups", "over 1 % of memory", []fact.Fact{host(fact.MemcgDying, 2000), host(fact.MemcgLiving, 1000), host(fact.MemTotal, 4<<30)}, Warning, fact.Subject{}, "MiB"},
	{"dying-cgroups", "memory unknown, few", []fact.Fact{host(fact.MemcgDying, 1900), host(fact.MemcgLiving, 10)}, "", fact.Subject{}, ""},
	{"dying-cgroups", "reclaim is fast", []fact.Fact{host(fact.MemcgDying, 20000), host(fact.MemcgLiving, 100), host(fact.ReclaimP50, 0.03)}, Warning, fact.Subject{}, "30 µs"},
	{"dying-cgroups", "reclaim is slow", []fact.Fact{host(fact.MemcgDying, 20000), host(fact.MemcgLiving, 100), host(fact.ReclaimP50, 8)}, Critical, fact.Subject{}, "8.0 ms"},
	{"dying-cgroups", "the parent is known", []fact.Fact{host(fact.MemcgDying, 20000), host(fact.MemcgLiving, 100), group(fact.MemcgPins, "/docker", 80<<20), group(fact.MemcgPins, "/few", 1<<20)}, Warning, fact.Subject{Cgroup: "/docker"}, "80 MiB"},
	{"dying-cgroups", "two may be the parent", []fact.Fact{host(fact.MemcgDying, 20000), host(fact.MemcgLiving, 100), group(fact.MemcgPins, "/docker", 80<<20), group(fact.MemcgPins, "/large", 10<<30)}, Warning, fact.Subject{}, "dying groups below /docker"},
	{"dying-cgroups", "an agent has counted them", []fact.Fact{host(fact.MemcgDying, 20000), host(fact.MemcgLiving, 100), host(fact.MemcgLeft, 3000), group(fact.MemcgLeft, "/pod", 1900), group(fact.MemcgLeft, "/docker", 1000), group(fact.MemcgPins, "/large", 10<<30)}, Warning, fact.Subject{Cgroup: "/pod"}, "1,900 of 3,000"},
	{"dying-cgroups", "an agent has counted too few", []fact.Fact{host(fact.MemcgDying, 20000), host(fact.MemcgLiving, 100), host(fact.MemcgLeft, 300), group(fact.MemcgLeft, "/pod", 290), group(fact.MemcgPins, "/large", 10<<30)}, Warning, fact.Subject{Cgroup: "/large"}, "10 GiB"},
	{"dying-cgroups", "a pool leaves them", []fact.Fact{host(fact.MemcgDying, 20000), host(fact.MemcgLiving, 100), host(fact.GroupsRemoved, 4), host(fact.GroupsReleased, 1.5)}, Warning, fact.Subject{}, "9,000 an hour"},
	{"dying-cgroups", "the kernel counts them", []fact.Fact{host(fact.MemcgDying, 20000), host(fact.MemcgLiving, 100), group(fact.MemcgUnder, "/docker", 19_000), group(fact.MemcgUnder, "/", 1000), group(fact.MemcgPins, "/large", 10<<30)}, Warning, fact.Subject{Cgroup: "/docker"}, "19,000"},

	{"pinned-cgroups", "no locked pages", []fact.Fact{host(fact.MemcgDying, 5000), host(fact.PinnedPages, 0)}, "", fact.Subject{}, ""},
	{"pinned-cgroups", "a holder", []fact.Fact{host(fact.MemcgDying, 5000), host(fact.PinnedPages, 4<<20), by(fact.PinnedPages, 4<<20, locker)}, Warning, locker, "/data/file"},
	{"pinned-cgroups", "a holder of few groups", []fact.Fact{host(fact.MemcgDying, 50), host(fact.PinnedPages, 4<<20), by(fact.PinnedPages, 4<<20, locker)}, "", fact.Subject{}, ""},

	{"fadvise-storm", "quiet", []fact.Fact{host(fact.Drains, 3), by(fact.DrainsBy, 3, logger)}, "", fact.Subject{}, ""},
	{"fadvise-storm", "a storm", []fact.Fact{host(fact.Drains, 2000), by(fact.DrainsBy, 100, other), by(fact.DrainsBy, 1900, logger)}, Warning, logger, "ksys_fadvise64_64"},
	{"fadvise-storm", "few, and no waits", []fact.Fact{host(fact.Drains, 46), by(fact.DrainsBy, 46, logger), by(fact.LockWait, 0.05, logger)}, "", fact.Subject{}, ""},
	{"fadvise-storm", "few, because the CPUs are busy", []fact.Fact{host(fact.Drains, 46), by(fact.DrainsBy, 46, logger), by(fact.LockWait, 0.36, logger), by(fact.LockWait, 5, inode1)}, Warning, logger, "36 %"},
	{"fadvise-storm", "a severe storm", []fact.Fact{host(fact.Drains, 7000), by(fact.DrainsBy, 7000, logger)}, Critical, logger, "GLOG_drop_log_memory=false"},
	{"fadvise-storm", "drains of another call", []fact.Fact{host(fact.Drains, 2000), by(fact.DrainsBy, 2000, other)}, Warning, other, "repeatedly drains"},
	{"fadvise-storm", "a process on two paths", []fact.Fact{host(fact.Drains, 2000), by(fact.DrainsBy, 900, other), by(fact.DrainsBy, 600, logger), by(fact.DrainsBy, 500, logger)}, Warning, logger, "1,100/s"},

	{"negative-dentries", "a large cache", []fact.Fact{host(fact.DentryNegative, 3e6), host(fact.DentryBytes, 3e6*192), host(fact.SlabTotal, 8<<30)}, "", fact.Subject{}, ""},
	{"negative-dentries", "bloat", []fact.Fact{host(fact.DentryNegative, 3e6), host(fact.DentryBytes, 3e6*192), host(fact.SlabTotal, 1<<30), group(fact.GroupKernelMem, web, 500<<20), group(fact.GroupKernelMem, hogs, 5<<20)}, Warning, fact.Subject{Cgroup: web}, "doctor cure dentries --cgroup /docker/web --apply"},
	{"negative-dentries", "no group named", []fact.Fact{host(fact.DentryNegative, 3e6), host(fact.DentryBytes, 3e6*192), host(fact.SlabTotal, 1<<30)}, Warning, fact.Subject{}, "3,000,000"},

	{"throttling", "a burst", []fact.Fact{host(fact.GroupsSeen, 9), group(fact.GroupThrottled, web, 0.04), group(fact.GroupPeriods, web, 300)}, "", fact.Subject{}, ""},
	{"throttling", "few periods", []fact.Fact{host(fact.GroupsSeen, 9), group(fact.GroupThrottled, web, 1), group(fact.GroupPeriods, web, 3)}, "", fact.Subject{}, ""},
	{"throttling", "often", []fact.Fact{host(fact.GroupsSeen, 9), group(fact.GroupThrottled, web, 0.2), group(fact.GroupPeriods, web, 300)}, Notice, fact.Subject{Cgroup: web}, "20 % of 300"},
	{"throttling", "by the limit of a slice", []fact.Fact{host(fact.GroupsSeen, 9), device(fact.AboveThrottled, "/ci.slice", 0.5), device(fact.AbovePeriods, "/ci.slice", 100), device(fact.AboveContainers, "/ci.slice", 7)}, Warning, fact.Subject{}, "CPUQuota"},
	{"throttling", "a burst below a slice", []fact.Fact{host(fact.GroupsSeen, 9), device(fact.AboveThrottled, "/ci.slice", 0.04), device(fact.AbovePeriods, "/ci.slice", 100)}, "", fact.Subject{}, ""},
	{"throttling", "far from its limit on a disk", []fact.Fact{host(fact.GroupsSeen, 9), group(fact.DiskLimitUsed, web, 0.8)}, "", fact.Subject{}, ""},
	{"throttling", "by its own limit on a disk", []fact.Fact{host(fact.GroupsSeen, 9), group(fact.DiskLimitUsed, web, 0.98)}, Notice, fact.Subject{}, "98 %"},
	{"throttling", "by the limit of a slice on a disk", []fact.Fact{host(fact.GroupsSeen, 9), device(fact.DiskLimitUsed, "/ci.slice", 0.95)}, Warning, fact.Subject{}, "/ci.slice/io.max"},
	{"throttling", "nearly always", []fact.Fact{host(fact.GroupsSeen, 9), group(fact.GroupThrottled, web, 0.9), group(fact.GroupPeriods, web, 300)}, Notice, fact.Subject{Cgroup: web}, "docker update --cpus"},

	{"noisy-neighbour", "CPUs to spare", noisy(0.5, 0.9, 0.1, 0.5, 0), "", fact.Subject{}, ""},
	{"noisy-neighbour", "CPUs to spare, and a program of high priority", noisy(0.7, 1.3, 0.1, 0.5, 0), Warning, fact.Subject{Cgroup: hogs, Pid: 8, Command: "burn"}, "1.3 of 2"},
	{"noisy-neighbour", "no waits", noisy(1, 1.8, 0.2, 0.05, 0), "", fact.Subject{}, ""},
	{"noisy-neighbour", "short waits, next to a compile job", noisy(1, 1.2, 0.2, 0.15, 0), "", fact.Subject{}, ""},
	{"noisy-neighbour", "two alike", noisy(1, 1, 1, 0.5, 0), "", fact.Subject{}, ""},
	{"noisy-neighbour", "the victim's own limit", noisy(1, 1.8, 0.2, 0.5, 0.3), "", fact.Subject{}, ""},
	{"noisy-neighbour", "many threads, of which each waits a little", append(noisy(1, 1.8, 0.2, 0.05, 0), group(fact.GroupWait, web, 0.5)), "", fact.Subject{}, ""},
	{"noisy-neighbour", "the hypervisor uses more", append([]fact.Fact{host(fact.CPUSteal, 0.5)}, noisy(1, 0.8, 0.1, 0.5, 0)...), "", fact.Subject{}, ""},
	{"noisy-neighbour", "containers that came and went use more", append([]fact.Fact{host(fact.GroupsCPU, 2)}, noisy(1, 0.7, 0.1, 0.5, 0)...), "", fact.Subject{}, ""},
	{"noisy-neighbour", "processes outside containers use more", noisy(1, 0.7, 0.1, 0.5, 0), Warning, fact.Subject{Cgroup: "/"}, "1.2 of 2"},
	{"noisy-neighbour", "many, of which each waits a little", crowded(0.1), "", fact.Subject{}, ""},
	{"noisy-neighbour", "too many", crowded(0.6), Warning, fact.Subject{}, "none of them uses much"},
	{"noisy-neighbour", "bursts of a program of the host", append(noisy(0.7, 0.9, 0.2, 0.05, 0), host(fact.CPUFull, 0.4), group(fact.GroupCPUFull, "/system.slice/puppet.service", 0.4)), Notice, fact.Subject{Cgroup: "/system.slice/puppet.service"}, "processes outside containers"},
	{"noisy-neighbour", "an engine that starts containers", append(noisy(0.7, 0.9, 0.2, 0.05, 0), host(fact.CPUFull, 0.25), group(fact.GroupCPUFull, "/system.slice/docker.service", 0.2)), "", fact.Subject{}, ""},
	{"noisy-neighbour", "bursts", append(noisy(0.7, 0.9, 0.2, 0.05, 0), host(fact.CPUFull, 0.4), group(fact.GroupCPUFull, hogs, 0.3)), Notice, fact.Subject{Cgroup: hogs, Pid: 8, Command: "burn"}, "30 %"},
	{"noisy-neighbour", "short bursts", append(noisy(0.7, 0.9, 0.2, 0.05, 0), host(fact.CPUFull, 0.1), group(fact.GroupCPUFull, hogs, 0.1), group(fact.GroupCPUBursts, hogs, 3)), Notice, fact.Subject{Cgroup: hogs, Pid: 8, Command: "burn"}, "250 ms"},
	{"noisy-neighbour", "two short bursts", append(noisy(0.7, 0.9, 0.2, 0.05, 0), host(fact.CPUFull, 0.1), group(fact.GroupCPUFull, hogs, 0.1), group(fact.GroupCPUBursts, hogs, 2)), "", fact.Subject{}, ""},
	{"noisy-neighbour", "too many, of which all want much", append(crowded(0.6), wants(0, 2), wants(1, 2), wants(2, 2), wants(3, 2)), Warning, fact.Subject{}, "none of them uses much"},
	{"noisy-neighbour", "processes outside containers", append(crowded(0.05)[:5], host(fact.GroupsCPU, 0.5), host(fact.CPUFull, 0.9), group(fact.GroupCPU, web, 0.5), group(fact.GroupLongest, web, 0.05)), Notice, fact.Subject{Cgroup: "/"}, "90 %"},
	{"noisy-neighbour", "one burst", append(noisy(0.7, 0.9, 0.2, 0.05, 0), host(fact.CPUFull, 0.1), group(fact.GroupCPUFull, hogs, 0.1)), "", fact.Subject{}, ""},
	{"noisy-neighbour", "a hog", noisy(1, 1.8, 0.2, 0.5, 0), Warning, fact.Subject{Cgroup: hogs, Pid: 8, Command: "burn"}, "1.8 of 2"},

	{"cpu-affinity", "one with two workers on it", bound(0.5, bind(web, "cpu0", 0.5), bind(web, "cpu0", 0.4)), Notice, fact.Subject{Cgroup: web, Pid: 7, Command: "db"}, "50 %"},
	{"cpu-affinity", "all CPUs are busy", bound(0.97, bind(web, "cpu0", 0.5), bind(hogs, "cpu0", 0.4)), "", fact.Subject{}, ""},
	{"cpu-affinity", "short waits", bound(0.5, bind(web, "cpu0", 0.1)), "", fact.Subject{}, ""},
	{"cpu-affinity", "its own quota stops it", append(bound(0.5, bind(web, "cpu0", 0.5)), group(fact.GroupThrottled, web, 0.6)), "", fact.Subject{}, ""},
	{"cpu-affinity", "a thread of the kernel", bound(0.5, bind("/", "cpu0", 0.5)), "", fact.Subject{}, ""},
	{"kernel-time", "as usual here", []fact.Fact{host(fact.GroupsSeen, 9), group(fact.GroupSystem, web, 0.5), group(fact.GroupCPU, web, 1), host(fact.BaseSystem, 0.4)}, "", fact.Subject{}, ""},
	{"kernel-time", "much more than usual", []fact.Fact{host(fact.GroupsSeen, 9), group(fact.GroupSystem, web, 0.9), group(fact.GroupCPU, web, 1), host(fact.BaseSystem, 0.2)}, Notice, fact.Subject{Cgroup: web}, "90 %"},
	{"kernel-time", "no baseline, a proxy", []fact.Fact{host(fact.GroupsSeen, 9), group(fact.GroupSystem, web, 0.7), group(fact.GroupCPU, web, 0.4)}, "", fact.Subject{}, ""},
	{"kernel-time", "no baseline, no other suffers", []fact.Fact{host(fact.GroupsSeen, 9), group(fact.GroupSystem, web, 0.9), group(fact.GroupCPU, web, 1)}, Notice, fact.Subject{Cgroup: web}, "0.90"},
	{"kernel-time", "no baseline, another waits", []fact.Fact{host(fact.GroupsSeen, 9), group(fact.GroupSystem, web, 0.9), group(fact.GroupCPU, web, 1), host(fact.CPUBusy, 1), group(fact.GroupLongest, hogs, 0.5),
		by(fact.CallsBy, 4000, fact.Subject{Cgroup: web, Pid: 7, Command: "gc", Device: "madvise"})}, Warning, fact.Subject{Cgroup: web, Pid: 7, Command: "gc"}, "madvise by gc"},

	{"syscall-storm", "the kernel is not busy", calls(), "", fact.Subject{}, ""},
	{"syscall-storm", "a busy program", calls(group(fact.Calls, web, 50_000), group(fact.GroupCPU, web, 1), group(fact.GroupSystem, web, 0.9)), "", fact.Subject{}, ""},
	{"syscall-storm", "many that cost little", calls(group(fact.Calls, web, 150_000), group(fact.GroupCPU, web, 1), group(fact.GroupSystem, web, 0.1)), "", fact.Subject{}, ""},
	{"syscall-storm", "a storm", calls(group(fact.Calls, web, 150_000), group(fact.GroupCPU, web, 1), group(fact.GroupSystem, web, 0.5),
		by(fact.CallsBy, 140_000, fact.Subject{Cgroup: web, Pid: 7, Command: "dd", Device: "read"}),
		by(fact.CallsBy, 145_000, fact.Subject{Cgroup: hogs, Pid: 8, Command: "other", Device: "write"})),
		Notice, fact.Subject{Cgroup: web, Pid: 7, Command: "dd"}, "read by dd"},
	{"syscall-storm", "few that act on the whole host", calls(by(fact.CallsReach, 4, fact.Subject{Cgroup: web, Device: "sync"}), by(fact.CallsReach, 400, fact.Subject{Cgroup: web, Device: "clone"})), "", fact.Subject{}, ""},
	{"syscall-storm", "many that act on the whole host", calls(by(fact.CallsReach, 90, fact.Subject{Cgroup: web, Device: "sync"}), by(fact.CallsReach, 600, fact.Subject{Cgroup: web, Device: "clone"})), Notice, fact.Subject{Cgroup: web}, "writes every file system"},
	{"syscall-storm", "and another container waits for the disk", calls(by(fact.CallsReach, 90, fact.Subject{Cgroup: web, Device: "sync"}), group(fact.GroupIOFull, hogs, 0.6)), Warning, fact.Subject{Cgroup: web}, "90/s"},
	{"syscall-storm", "and it stops at its own limit", calls(by(fact.CallsReach, 90, fact.Subject{Cgroup: web, Device: "sync"}), host(fact.CPUBusy, 1), group(fact.GroupLongest, hogs, 0.6), group(fact.GroupThrottled, hogs, 0.6)), Notice, fact.Subject{Cgroup: web}, "90/s"},

	{"own-limit", "reads files", []fact.Fact{host(fact.GroupsSeen, 9), group(fact.GroupLimitHits, web, 5000), group(fact.GroupLimit, web, 1<<20), group(fact.GroupMemoryFull, web, 0.01)}, "", fact.Subject{}, ""},
	{"own-limit", "stands still", []fact.Fact{host(fact.GroupsSeen, 9), group(fact.GroupLimitHits, web, 50), group(fact.GroupLimit, web, 1<<20), group(fact.GroupMemoryFull, web, 0.3)}, Warning, fact.Subject{Cgroup: web}, "30 %"},
	{"own-limit", "reads the same again, on a fast disk", []fact.Fact{host(fact.GroupsSeen, 9), group(fact.GroupLimitHits, web, 9000), group(fact.GroupLimit, web, 1<<20), group(fact.GroupMemoryFull, web, 0.02), group(fact.GroupIOFull, web, 0.2), group(fact.GroupRefaults, web, 9000)}, Warning, fact.Subject{Cgroup: web}, "20 %"},
	{"own-limit", "reads much, once", []fact.Fact{host(fact.GroupsSeen, 9), group(fact.GroupLimitHits, web, 9000), group(fact.GroupLimit, web, 1<<20), group(fact.GroupMemoryFull, web, 0.02), group(fact.GroupIOFull, web, 0.2), group(fact.GroupRefaults, web, 20)}, "", fact.Subject{}, ""},
	{"own-limit", "no pressure to read, refaults", []fact.Fact{host(fact.GroupsSeen, 9), group(fact.GroupLimitHits, web, 500), group(fact.GroupLimit, web, 1<<20), group(fact.GroupRefaults, web, 500)}, Warning, fact.Subject{Cgroup: web}, "500/s"},
	{"own-limit", "no pressure to read, no refaults", []fact.Fact{host(fact.GroupsSeen, 9), group(fact.GroupLimitHits, web, 500), group(fact.GroupLimit, web, 1<<20), group(fact.GroupRefaults, web, 5)}, "", fact.Subject{}, ""},
	{"own-limit", "its processes are killed", []fact.Fact{host(fact.GroupsSeen, 9), group(fact.GroupOOMKills, web, 3), group(fact.GroupLimitHits, web, 5000), group(fact.GroupLimit, web, 1<<20), group(fact.GroupMemoryFull, web, 0.3)}, Warning, fact.Subject{Cgroup: web}, "killed"},
	{"own-limit", "it was killed before", []fact.Fact{host(fact.GroupsSeen, 9), {Name: fact.OOMKilled, Value: 2, Over: 40, Subject: other}}, Notice, other, "40 s"},
	{"own-limit", "the host had no memory", []fact.Fact{host(fact.GroupsSeen, 9), {Name: fact.HostOOMKilled, Value: 1, Over: 40, Subject: fact.Subject{Cgroup: web, Command: "node"}}}, Notice, fact.Subject{Cgroup: web, Command: "node"}, "the host had no memory"},
	{"own-limit", "stalled by others", []fact.Fact{host(fact.GroupsSeen, 9), group(fact.GroupLimitHits, web, 0), group(fact.GroupLimit, web, 1<<20), group(fact.GroupMemoryFull, web, 0.3)}, "", fact.Subject{}, ""},

	{"kernel-lock", "none to speak of", []fact.Fact{host(fact.LockSeen, 1), host(fact.RtnlWait, 0.8), by(fact.LockWait, 0.8, churn)}, "", fact.Subject{}, ""},
	{"kernel-lock", "rtnl", []fact.Fact{host(fact.LockSeen, 1), host(fact.RtnlWait, 2.3), by(fact.LockWait, 2.2, churn)}, Warning, churn, "220 %"},
	{"kernel-lock", "one group's own lock", []fact.Fact{host(fact.LockSeen, 1), by(fact.LockWait, 2.2, inode1)}, "", fact.Subject{}, ""},
	{"kernel-lock", "of a memory map that another program reads", []fact.Fact{host(fact.LockSeen, 1), by(fact.LockWait, 0.5, mapped), by(fact.LockWait, 0.1, mapReader)}, Warning, mapReader, "m_start"},
	{"kernel-lock", "a shared lock", []fact.Fact{host(fact.LockSeen, 1), by(fact.LockWait, 0.5, inode1), by(fact.LockWait, 0.2, inode2)}, Warning, inode1, "path_openat"},

	{"fragmentation", "stalls, but blocks are left", []fact.Fact{host(fact.CompactStalls, 100), device(fact.HighOrderFree, "Node 0 Normal", 5)}, "", fact.Subject{}, ""},
	{"fragmentation", "no blocks, but no stalls", []fact.Fact{host(fact.CompactStalls, 0), device(fact.HighOrderFree, "Node 0 Normal", 0)}, "", fact.Subject{}, ""},
	{"fragmentation", "both", []fact.Fact{host(fact.CompactStalls, 100), device(fact.HighOrderFree, "Node 0 Normal", 0), device(fact.HighOrderFree, "Node 0 DMA", 2)}, Warning, fact.Subject{}, "defrag"},

	{"conntrack-full", "no table at all", []fact.Fact{host(fact.ConnTables, 0)}, "", fact.Subject{}, ""},
	{"conntrack-full", "half", []fact.Fact{host(fact.ConnTables, 1), device(fact.Conntrack, "net:[1]", 0.5), device(fact.ConnDrops, "net:[1]", 0)}, "", fact.Subject{}, ""},
	{"conntrack-full", "nearly", []fact.Fact{host(fact.ConnTables, 1), device(fact.Conntrack, "net:[1]", 0.9), device(fact.ConnDrops, "net:[1]", 0)}, Warning, fact.Subject{Device: "net:[1]"}, "90 %"},
	{"conntrack-full", "of the host, and most calls of one program", []fact.Fact{host(fact.ConnTables, 1), device(fact.Conntrack, "net:[1]", 0.9), device(fact.ConnDrops, "net:[1]", 0), by(fact.CallsBy, 9000, fact.Subject{Cgroup: "/system.slice/probes", Pid: 4, Command: "probes", Device: "sendto"}), by(fact.CallsBy, 80, fact.Subject{Cgroup: web, Pid: 5, Device: "connect"})}, Warning, fact.Subject{Cgroup: "/system.slice/probes", Pid: 4, Command: "probes", Device: "net:[1]"}, "9,000/s"},
	{"conntrack-full", "of the host, and most entries of one container", []fact.Fact{host(fact.ConnTables, 1), device(fact.Conntrack, "net:[1]", 0.9), by(fact.ConnUser, 0.75, fact.Subject{Cgroup: web, Pid: 5, Device: "net:[1]"}), by(fact.CallsBy, 9000, fact.Subject{Cgroup: "/system.slice/probes", Pid: 4, Command: "probes", Device: "sendto"})}, Warning, fact.Subject{Cgroup: web, Pid: 5, Device: "net:[1]"}, "75 %"},
	{"conntrack-full", "of another namespace than the one with the entries", []fact.Fact{host(fact.ConnTables, 2), device(fact.Conntrack, "net:[2]", 0.9), by(fact.ConnUser, 0.75, fact.Subject{Cgroup: web, Pid: 5, Device: "net:[1]"})}, Warning, fact.Subject{Device: "net:[2]"}, "90 %"},
	{"conntrack-full", "drops", []fact.Fact{host(fact.ConnTables, 1), device(fact.Conntrack, "net:[1]", 0.5), device(fact.ConnDrops, "net:[1]", 3)}, Critical, fact.Subject{Device: "net:[1]"}, "net:[1]"},

	{"softirq", "some", []fact.Fact{device(fact.CPUSoftirq, "cpu0", 0.2), host(fact.NetDrops, 0)}, "", fact.Subject{}, ""},
	{"softirq", "one CPU", []fact.Fact{device(fact.CPUSoftirq, "cpu0", 0.1), device(fact.CPUSoftirq, "cpu1", 0.6), host(fact.NetDrops, 0)}, Warning, fact.Subject{Device: "cpu1"}, "cpu1"},
	{"softirq", "most are of disks", []fact.Fact{device(fact.CPUSoftirq, "cpu1", 0.6), host(fact.NetDrops, 0), host(fact.SoftirqsNet, 900), host(fact.SoftirqsDisk, 70_000)}, Warning, fact.Subject{Device: "cpu1"}, "interrupts of disks"},
	{"softirq", "one program sends most requests", []fact.Fact{device(fact.CPUSoftirq, "cpu1", 0.6), host(fact.NetDrops, 0), host(fact.SoftirqsNet, 900), host(fact.SoftirqsDisk, 70_000), by(fact.DiskBy, 9000, logger), by(fact.DiskBy, 500, other)}, Warning, fact.Subject{Cgroup: logger.Cgroup, Pid: logger.Pid, Command: logger.Command, Device: "cpu1"}, "interrupts of disks"},
	{"softirq", "drops", []fact.Fact{device(fact.CPUSoftirq, "cpu0", 0.1), host(fact.NetDrops, 2)}, Warning, fact.Subject{Device: "cpu0"}, "packets are dropped"},
	{"softirq", "a container gets most packets", []fact.Fact{device(fact.CPUSoftirq, "cpu0", 0.6), host(fact.NetDrops, 0), by(fact.Packets, 50_000, other), by(fact.Packets, 900, logger), host(fact.Packets, 100)}, Warning, other, "cpu0"},
	{"limits-near", "room", []fact.Fact{host(fact.GroupsSeen, 9), host(fact.HostMaxPids, 1000), host(fact.HostThreads, 500), host(fact.HostMaxFiles, 1000), host(fact.HostFiles, 10), group(fact.GroupPids, web, 0.5)}, "", fact.Subject{}, ""},
	{"limits-near", "a container", []fact.Fact{host(fact.GroupsSeen, 9), host(fact.HostMaxPids, 1000), host(fact.HostThreads, 500), host(fact.HostMaxFiles, 1000), host(fact.HostFiles, 10), group(fact.GroupPids, web, 0.95)}, Warning, fact.Subject{Cgroup: web}, "95 %"},
	{"limits-near", "threads", []fact.Fact{host(fact.GroupsSeen, 9), host(fact.HostMaxPids, 1000), host(fact.HostThreads, 950), host(fact.HostMaxFiles, 1000), host(fact.HostFiles, 10)}, Warning, fact.Subject{}, "pid_max"},
	{"limits-near", "threads, of which the kernel allows fewer than pids", []fact.Fact{host(fact.GroupsSeen, 9), host(fact.HostMaxPids, 4_194_304), host(fact.HostMaxTasks, 63_000), host(fact.HostThreads, 60_000), host(fact.HostMaxFiles, 1000), host(fact.HostFiles, 10)}, Warning, fact.Subject{}, "threads-max"},
	{"limits-near", "files", []fact.Fact{host(fact.GroupsSeen, 9), host(fact.HostMaxPids, 1000), host(fact.HostThreads, 500), host(fact.HostFiles, 950), host(fact.HostMaxFiles, 1000)}, Warning, fact.Subject{}, "file-max"},

	{"limits-near", "a limit of the whole host", limited(by(fact.LimitUsed, 0.95, fact.Subject{Cgroup: web, Pid: 7, Command: "db", Device: "fs.aio-max-nr"})), Warning, fact.Subject{Cgroup: web, Pid: 7, Command: "db"}, "fs.aio-max-nr"},
	{"limits-near", "half of it", limited(by(fact.LimitUsed, 0.6, fact.Subject{Cgroup: web, Pid: 7, Command: "db", Device: "kernel.pty.max"})), "", fact.Subject{}, ""},
	{"limits-near", "mappings", limited(by(fact.ProcessMaps, 0.916, other)), Warning, other, "max_map_count"},
	{"limits-near", "a third of the mappings", limited(by(fact.ProcessMaps, 0.6, other)), "", fact.Subject{}, ""},
	{"limits-near", "some neighbours", limited(by(fact.NeighbourSoft, 0.9, fact.Subject{Device: "net.ipv4.neigh.default.gc_thresh3"})), "", fact.Subject{}, ""},
	{"limits-near", "neighbours over the soft limit", limited(by(fact.NeighbourSoft, 1.77, monitor)), Notice, fact.Subject{Cgroup: web, Pid: 7, Command: "monitor"}, "gc_thresh2"},
	{"limits-near", "neighbours near the limit", limited(by(fact.NeighbourSoft, 1.9, monitor), by(fact.LimitUsed, 0.95, monitor)), Warning, fact.Subject{Cgroup: web, Pid: 7, Command: "monitor"}, "gc_thresh3"},
	{"limits-near", "no room for neighbours", limited(by(fact.NeighbourSoft, 0.8, monitor), by(fact.NeighbourDrops, 3, monitor)), Warning, fact.Subject{Cgroup: web, Pid: 7, Command: "monitor"}, "no room"},
	{"limits-near", "zombies that a busy parent has just left", limited(zombies(300, 1, inContainer)), "", fact.Subject{}, ""},
	{"limits-near", "some zombies", limited(zombies(90, 12, inContainer)), "", fact.Subject{}, ""},
	{"limits-near", "zombies", limited(zombies(300, 12, inContainer), group(fact.GroupPids, inContainer, 0.29)), Notice, fact.Subject{Cgroup: inContainer, Pid: 7, Command: "entrypoint"}, "29 %"},
	{"limits-near", "zombies near the limit", limited(zombies(95, 12, inContainer), group(fact.GroupPids, inContainer, 0.96)), Warning, fact.Subject{Cgroup: inContainer, Pid: 7, Command: "entrypoint"}, "docker run --init"},
	{"limits-near", "zombies of a program of the host", limited(zombies(500, 12, "/system.slice/agent.service")), Notice, fact.Subject{Cgroup: "/system.slice/agent.service", Pid: 7, Command: "entrypoint"}, "ps --ppid 7"},
	{"limits-near", "message queues", limited(by(fact.Queues, 0.98, other)), Warning, other, "98 %"},
	{"limits-near", "semaphores", limited(by(fact.Semaphores, 0.93, other)), Warning, other, "ipcs -s"},
	{"limits-near", "half of the semaphores", limited(by(fact.Semaphores, 0.5, other), by(fact.Messages, 0.5, other), by(fact.Fragments, 0.5, other)), "", fact.Subject{}, ""},
	{"limits-near", "half of TIME-WAIT", limited(by(fact.TimeWait, 0.5, other), by(fact.ProcessLocked, 0.6, other)), "", fact.Subject{}, ""},
	{"limits-near", "TIME-WAIT", limited(by(fact.TimeWait, 0.95, other)), Warning, other, "tcp_max_tw_buckets"},
	{"limits-near", "locked memory", limited(by(fact.ProcessLocked, 0.97, other)), Warning, other, "memlock"},
	{"limits-near", "fragments", limited(by(fact.Fragments, 0.95, other)), Warning, other, "95 %"},
	{"limits-near", "connections that are being closed", limited(closing(99, 20)...), "", fact.Subject{}, ""},
	{"limits-near", "connections that a busy server closes late", limited(closing(300, -5)...), "", fact.Subject{}, ""},
	{"limits-near", "connections that stay in CLOSE-WAIT", limited(closing(300, 5)...), Notice, other, "5.0/s"},
	{"limits-near", "a half-full /dev/shm", limited(shm(0.5, 0)...), "", fact.Subject{}, ""},
	{"limits-near", "a /dev/shm that fills slowly", limited(shm(0.5, 0.0001)...), "", fact.Subject{}, ""},
	{"limits-near", "a /dev/shm that will be full", limited(shm(0.5, 0.005)...), Notice, other, "100 s"},
	{"limits-near", "a full /dev/shm", limited(shm(0.99, 0)...), Warning, other, "99 %"},
	{"limits-near", "a heap near the memory limit", limited(group(fact.GroupHeld, web, 95), group(fact.GroupLimit, web, 100)), Notice, fact.Subject{Cgroup: web}, "95 %"},
	{"limits-near", "memory without a limit", limited(group(fact.GroupHeld, web, 95)), "", fact.Subject{}, ""},
	{"limits-near", "threads of a user", limited(by(fact.LimitUsed, 0.95, fact.Subject{Cgroup: web, Pid: 7, Command: "node", Device: "RLIMIT_NPROC"})), Warning, fact.Subject{Cgroup: web, Pid: 7, Command: "node"}, "--ulimit nproc"},
	{"limits-near", "open files that grow", limited(by(fact.FilesGrown, 0.3, other), by(fact.FilesGrowth, 0.01, other)), Notice, other, "70 s"},
	{"limits-near", "a full message queue", limited(by(fact.QueueBytes, 0.98, other)), Warning, other, "ipcs -q"},
	{"limits-near", "a file at its size", limited(by(fact.FileSize, 0.96, other)), Warning, other, "fsize"},
	{"limits-near", "mappings that grow", limited(by(fact.MapsGrown, 0.7, other), by(fact.MapsGrowth, 0.005, other)), Notice, other, "60 s"},
	{"limits-near", "mappings that grow slowly", limited(by(fact.MapsGrown, 0.3, other), by(fact.MapsGrowth, 0.001, other)), "", fact.Subject{}, ""},
	{"limits-near", "threads that grow", limited(group(fact.GroupPids, web, 0.4), group(fact.GroupPidsGrowth, web, 0.02)), Notice, fact.Subject{Cgroup: web}, "30 s"},
	{"limits-near", "workers that start", limited(group(fact.GroupPids, web, 0.2), group(fact.GroupPidsGrowth, web, 0.02)), "", fact.Subject{}, ""},
	{"limits-near", "threads that grow slowly", limited(group(fact.GroupPids, web, 0.4), group(fact.GroupPidsGrowth, web, 0.0009)), "", fact.Subject{}, ""},
	{"limits-near", "address space", limited(by(fact.ProcessMapped, 0.96, other)), Warning, other, "RLIMIT_AS"},
	{"limits-near", "open files that grow slowly", limited(by(fact.FilesGrown, 0.3, other), by(fact.FilesGrowth, 0.001, other)), "", fact.Subject{}, ""},
	{"limits-near", "open files of a process", []fact.Fact{host(fact.GroupsSeen, 9), host(fact.HostMaxPids, 1000), host(fact.HostThreads, 500), host(fact.HostMaxFiles, 1000), host(fact.HostFiles, 10), by(fact.ProcessFiles, 0.97, other), by(fact.Ports, 0.5, logger)}, Warning, other, "nofile"},

	{"inotify-limit", "room", []fact.Fact{host(fact.InotifySeen, 2), device(fact.Inotify, "watches of user 0", 0.5)}, "", fact.Subject{}, ""},
	{"inotify-limit", "nearly all, by many containers", []fact.Fact{host(fact.InotifySeen, 2), device(fact.Inotify, "instances of user 0", 0.95)}, Warning, fact.Subject{}, "by many containers together"},
	{"inotify-limit", "events that nothing reads", []fact.Fact{host(fact.InotifySeen, 2), by(fact.Unread, 700<<10, watching)}, Notice, watching, "700 KiB"},
	{"inotify-limit", "nearly all", []fact.Fact{host(fact.InotifySeen, 2), by(fact.Inotify, 0.95, watching), device(fact.Inotify, "watches of user 7", 0.1)}, Warning, watching, "95 %"},

	{"slow-disk", "few flushes", disk(50, 0.9, 40), "", fact.Subject{}, ""},
	{"slow-disk", "a fast disk", disk(1500, 0.2, 3000), "", fact.Subject{}, ""},
	{"slow-disk", "a storm", disk(500, 0.9, 900), Warning, fact.Subject{Cgroup: web}, "500/s"},
	{"slow-disk", "a storm on a fast disk", disk(5000, 0.2, 9000), Warning, fact.Subject{Cgroup: web}, "5,000/s"},
	{"slow-disk", "a storm on a slow disk", append(disk(45, 0.9, 80), device(fact.DiskFlushing, "vda", 0.8)), Warning, fact.Subject{Cgroup: web}, "45/s"},
	{"slow-disk", "few flushes on a slow disk", append(disk(8, 0.9, 80), device(fact.DiskFlushing, "vda", 0.8)), "", fact.Subject{}, ""},
	{"slow-disk", "large writes with few flushes", append(disk(45, 0.9, 80), device(fact.DiskFlushing, "vda", 0.2)), "", fact.Subject{}, ""},
	{"slow-disk", "little read-ahead for random reads of a larger size", append(disk(5, 0.9, 50), reads(4<<10, 5000, 16<<10)...), "", fact.Subject{}, ""},
	{"slow-disk", "little read-ahead, and few reads", append(disk(5, 0.9, 50), reads(4<<10, 50, 4<<10)...), "", fact.Subject{}, ""},
	{"slow-disk", "the default read-ahead", append(disk(5, 0.9, 50), reads(128<<10, 5000, 4<<10)...), "", fact.Subject{}, ""},
	{"slow-disk", "little read-ahead", append(disk(5, 0.9, 50), reads(4<<10, 5000, 4<<10)...), Notice, fact.Subject{}, "/sys/block/vda/queue/read_ahead_kb"},
	{"slow-disk", "small requests, as the disk accepts no larger ones", append(disk(5, 0.9, 50), device(fact.DiskRequest, "vda", 64<<10), device(fact.DiskRequestMax, "vda", 128<<10)), "", fact.Subject{}, ""},
	{"slow-disk", "small requests by a setting", append(disk(5, 0.9, 50), device(fact.DiskRequest, "vda", 8<<10), device(fact.DiskRequestMax, "vda", 1<<20)), Notice, fact.Subject{}, "echo 1024 >/sys/block/vda"},
	{"slow-disk", "small requests by a setting, and a container waits", append(disk(5, 0.9, 50), device(fact.DiskRequest, "vda", 8<<10), device(fact.DiskRequestMax, "vda", 2<<40), group(fact.GroupIOFull, hogs, 0.6)), Warning, fact.Subject{}, "echo 1280 >"},
	{"slow-disk", "unknown writer", []fact.Fact{device(fact.DiskFlush, "vda", 500), device(fact.DiskBusy, "vda", 0.9)}, Warning, fact.Subject{}, "an unknown process"},
	{"slow-disk", "no main writer", append(disk(500, 0.9, 200), group(fact.GroupWrites, hogs, 190), group(fact.GroupWrites, "/docker/x", 190)), "", fact.Subject{}, ""},
	{"slow-disk", "the process is known, and the kernel's threads", []fact.Fact{device(fact.DiskFlush, "vda", 900), device(fact.DiskBusy, "vda", 0.9), by(fact.DiskBy, 2000, fact.Subject{Cgroup: "/", Command: "jbd2/vda-8"}), by(fact.DiskBy, 800, logger), by(fact.DiskBy, 50, other)}, Warning, logger, "800/s"},
	{"slow-disk", "a backup, and a database waits", append(saturated(0.99, 7.4), group(fact.GroupIOFull, hogs, 0.6)), Warning, fact.Subject{Cgroup: web}, "900 MiB/s of 902 MiB/s"},
	{"slow-disk", "a backup alone", saturated(0.99, 7.4), Notice, fact.Subject{Cgroup: web}, "7.4"},
	{"slow-disk", "a busy disk without a queue", saturated(0.99, 1.1), "", fact.Subject{}, ""},
	{"slow-disk", "a queue for a part of the time", saturated(0.5, 7.4), "", fact.Subject{}, ""},
	{"slow-disk", "a deep queue for a part of the time", saturated(0.5, 9), Notice, fact.Subject{Cgroup: web}, "9.0"},
	{"slow-disk", "several read", append(saturated(0.99, 7.4), group(fact.DiskUse, "/docker/x", 899<<20)), "", fact.Subject{}, ""},
	{"slow-disk", "slower than usual", append(disk(5, 0.1, 5), host(fact.DiskP99, 60), host(fact.BaseDisk, 5)), Warning, fact.Subject{}, "60 ms"},
	{"socket-memory", "a busy server", sockets(200<<20, 0, 0), "", fact.Subject{}, ""},
	{"socket-memory", "traffic that increases slowly", sockets(200<<20, 100<<10, 0), "", fact.Subject{}, ""},
	{"socket-memory", "growth for a while, and not all the time", sockets(200<<20, 8<<20, 0)[:6], "", fact.Subject{}, ""},
	{"socket-memory", "orphans that grow", append(sockets(200<<20, 8<<20, 0.01), by(fact.SocketQueued, 9<<20, monitor), by(fact.SocketLeft, 5<<20, monitor), by(fact.SocketQueued, 1<<20, fact.Subject{Device: "net:[1]"})), Notice, monitor, "5.0 MiB"},
	{"socket-memory", "two that have as much", append(sockets(200<<20, 8<<20, 0.01), by(fact.SocketQueued, 5<<20, monitor), by(fact.SocketQueued, 5<<20, other)), Notice, fact.Subject{}, "growth"},
	{"socket-memory", "half of it, and it grows", sockets(800<<20, 8<<20, 0), Warning, fact.Subject{}, "in 1m"},
	{"socket-memory", "all of it", sockets(1500<<20, 0, 0), Warning, fact.Subject{}, "slows down"},
	{"socket-memory", "orphans at their limit", sockets(200<<20, 0, 0.95), Warning, fact.Subject{}, "95 %"},

	{"page-merging", "ksmd with its defaults", []fact.Fact{seenMerging, host(fact.MergingCPU, 0.04)}, "", fact.Subject{}, ""},
	{"page-merging", "it is busy", []fact.Fact{seenMerging, host(fact.MergingCPU, 0.9), host(fact.MergingScanned, 200_000), by(fact.MergingBy, 256<<20, logger), by(fact.MergingBy, 1<<20, other)}, Notice, logger, "256 MiB of 257 MiB"},
	{"page-merging", "containers wait for CPUs", []fact.Fact{seenMerging, host(fact.MergingCPU, 0.9), host(fact.CPUBusy, 0.99), by(fact.MergingBy, 256<<20, logger), group(fact.GroupLongest, hogs, 0.5)}, Warning, logger, "256 MiB"},
	{"profiler", "timers of programs", []fact.Fact{host(fact.ProfilerSeen, 1)}, "", fact.Subject{}, ""},
	{"profiler", "two of perf record", profiled(8000, by(fact.ProfilerBy, 4000, logger), by(fact.ProfilerBy, 4000, other)), "", fact.Subject{}, ""},
	{"profiler", "this program alone", profiled(40_000), "", fact.Subject{}, ""},
	{"profiler", "a tracer has more events open", profiled(40_000, by(fact.ProfilerBy, 39_000, logger), by(fact.ProfilerEvents, 2, logger), by(fact.ProfilerEvents, 300, other)), Notice, logger, "39,000/s"},
	{"profiler", "containers wait for CPUs", profiled(20_000, by(fact.ProfilerBy, 20_000, logger), host(fact.CPUBusy, 0.99), group(fact.GroupLongest, hogs, 0.5)), Warning, logger, "20,000/s"},
	{"profiler", "the owner is unknown", profiled(20_000, by(fact.ProfilerEvents, 6, logger), by(fact.ProfilerEvents, 2, other)), Notice, logger, "6 of 8"},
	{"profiler", "several hold as many", profiled(20_000, by(fact.ProfilerEvents, 2, logger), by(fact.ProfilerEvents, 2, other)), Notice, fact.Subject{}, "20,000/s"},
	{"ptrace", "none", []fact.Fact{host(fact.TasksSeen, 9)}, "", fact.Subject{}, ""},
	{"ptrace", "a debugger that waits", traces(500, operator, fact.Subject{Cgroup: inContainer, Pid: 7, Command: "server"}), "", fact.Subject{}, ""},
	{"ptrace", "a program that starts under strace", traces(50_000, operator, fact.Subject{Cgroup: "/user.slice", Pid: 7, Command: "make"}), Notice, operator, "process 7, make"},
	{"ptrace", "few stops of a container", traces(4000, operator, fact.Subject{Cgroup: inContainer, Pid: 7, Command: "server"}), Notice, operator, "4,000/s"},
	{"ptrace", "many stops of a container", traces(20_000, operator, fact.Subject{Cgroup: inContainer, Pid: 7, Command: "server"}), Warning, operator, "kill 9"},
	{"ptrace", "a debugger that stops a container seldom", []fact.Fact{host(fact.TasksSeen, 9), by(fact.TracerStops, 15, visitor)}, "", fact.Subject{}, ""},
	{"ptrace", "a profiler that stops a container for each sample", []fact.Fact{host(fact.TasksSeen, 9), by(fact.TracerStops, 60, visitor)}, Notice, operator, "60/s"},
	{"ptrace", "in its own container", traces(20_000, fact.Subject{Cgroup: inContainer, Pid: 9, Command: "strace"}, fact.Subject{Cgroup: inContainer, Pid: 7, Command: "server"}), Notice, fact.Subject{Cgroup: inContainer, Pid: 9, Command: "strace"}, "20,000/s"},
	{"ptrace", "in its own container, and others wait", traces(20_000, fact.Subject{Cgroup: inContainer, Pid: 9, Command: "strace"}, fact.Subject{Cgroup: inContainer, Pid: 7, Command: "server"}, host(fact.CPUBusy, 0.99), group(fact.GroupLongest, web, 0.5)), Warning, fact.Subject{Cgroup: inContainer, Pid: 9, Command: "strace"}, "20,000/s"},
	{"ptrace", "few stops, and others wait", traces(3000, fact.Subject{Cgroup: hogs, Pid: 9, Command: "strace"}, fact.Subject{Cgroup: hogs, Pid: 7, Command: "make"}, host(fact.CPUBusy, 0.99), group(fact.GroupLongest, web, 0.5)), Notice, fact.Subject{Cgroup: hogs, Pid: 9, Command: "strace"}, "3,000/s"},
	{"page-merging", "ksmd is in another pid namespace", []fact.Fact{seenMerging, host(fact.MergingScanned, 200_000), by(fact.MergingBy, 256<<20, logger)}, Notice, logger, "40 %"},
	{"page-merging", "ksmd is in another pid namespace, with its defaults", []fact.Fact{seenMerging, host(fact.MergingScanned, 5000)}, "", fact.Subject{}, ""},
	{"page-merging", "many virtual machines", []fact.Fact{seenMerging, host(fact.MergingCPU, 0.5), by(fact.MergingBy, 1<<30, logger), by(fact.MergingBy, 1<<30, other)}, Notice, fact.Subject{}, "50 %"},

	{"khugepaged", "huge pages are off", []fact.Fact{seenHuge}, "", fact.Subject{}, ""},
	{"khugepaged", "the defaults", huge(10_000, 4096, 0.1, 0.8, host(fact.HugeCPU, 0.005)), "", fact.Subject{}, ""},
	{"khugepaged", "the defaults, and the thread is not visible", huge(10_000, 4096, 0.1, 0.8), "", fact.Subject{}, ""},
	{"khugepaged", "no sleep, and nothing to search", huge(0, 65536, 0, 0), "", fact.Subject{}, ""},
	{"khugepaged", "no sleep, on busy CPUs that leave it little", huge(0, 65536, 40, 0, host(fact.HugeCPU, 0.02)), "", fact.Subject{}, ""},
	{"khugepaged", "no sleep, and the thread is not visible", huge(0, 65536, 40, 0, host(fact.CPUBusy, 0.99), group(fact.GroupLongest, hogs, 0.5)), Notice, fact.Subject{}, "40/s"},
	{"khugepaged", "it is busy", huge(0, 65536, 40, 0, host(fact.HugeCPU, 0.9)), Notice, fact.Subject{}, "echo 10000"},
	{"khugepaged", "containers wait for CPUs", huge(0, 65536, 40, 3, host(fact.HugeCPU, 0.9), host(fact.CPUBusy, 0.99), group(fact.GroupLongest, hogs, 0.5)), Warning, fact.Subject{}, "90 %"},
	{"khugepaged", "a container waits for the disk", huge(0, 65536, 40, 3, host(fact.HugeCPU, 0.9), group(fact.GroupIOFull, hogs, 0.9)), Notice, fact.Subject{}, "90 %"},
	{"khugepaged", "a large program has just started", huge(100, 65536, 1, 700, host(fact.HugeCPU, 0.4), host(fact.CPUBusy, 0.99), group(fact.GroupLongest, hogs, 0.5)), Notice, fact.Subject{}, "700/s"},
	{"khugepaged", "huge pages for all programs, of which few take some", huge(10_000, 4096, 0, 0, host(fact.HugeAlways, 1), host(fact.HugeFaults, 50)), "", fact.Subject{}, ""},
	{"khugepaged", "huge pages for programs that ask for them", huge(10_000, 4096, 0, 0, host(fact.HugeFaults, 900)), "", fact.Subject{}, ""},
	{"khugepaged", "huge pages for all programs", huge(10_000, 4096, 0, 0, host(fact.HugeAlways, 1), host(fact.HugeFaults, 900)), Notice, fact.Subject{}, "echo madvise"},
	{"khugepaged", "huge pages for all programs, on fragmented memory", huge(10_000, 4096, 0, 0, host(fact.HugeAlways, 1), host(fact.HugeFaults, 900), host(fact.CompactStalls, 40)), Warning, fact.Subject{}, "40/s"},
	{"khugepaged", "memory is fragmented", huge(10_000, 4096, 0, 0, host(fact.HugeCPU, 0.6)), Notice, fact.Subject{}, "khugepaged/defrag"},

	{"frozen", "nothing is stopped", []fact.Fact{host(fact.StopsSeen, 1)}, "", fact.Subject{}, ""},
	{"frozen", "a debugger stops a process once", []fact.Fact{host(fact.StopsSeen, 1), by(fact.Stops, 1, fact.Subject{Cgroup: "/user.slice", Pid: 7, Command: "gdb", Device: web})}, "", fact.Subject{}, ""},
	{"frozen", "a snapshot job", []fact.Fact{host(fact.StopsSeen, 1), by(fact.Stops, 6, fact.Subject{Cgroup: "/user.slice", Pid: 7, Command: "snapshot", Device: web})}, Warning, fact.Subject{Cgroup: "/user.slice", Pid: 7, Command: "snapshot"}, "kill 7"},
	{"frozen", "a container is paused once", []fact.Fact{host(fact.StopsSeen, 1), group(fact.Freezes, web, 1)}, "", fact.Subject{}, ""},
	{"frozen", "a container is paused again and again", []fact.Fact{host(fact.StopsSeen, 1), group(fact.Freezes, web, 9), group(fact.FrozenShare, web, 0.4)}, Notice, fact.Subject{}, "40 %"},
	{"stuck-tasks", "a stopped holder of a lock", []fact.Fact{host(fact.StuckSeen, 0), by(fact.LockHeld, 3, other)}, Warning, other, "kill -CONT 8"},
	{"stuck-tasks", "a lock of the host", []fact.Fact{host(fact.StuckSeen, 0), by(fact.LockWaits, 0.7, fact.Subject{Cgroup: "/backup.service", Pid: 7, Command: "backup", Device: web})}, Notice, fact.Subject{Cgroup: "/backup.service", Pid: 7, Command: "backup"}, "70 %"},
	{"stuck-tasks", "a deadlock", []fact.Fact{host(fact.StuckSeen, 0), by(fact.LockCycle, 2, other)}, Warning, other, "2"},
	{"stuck-tasks", "a lock for a moment", []fact.Fact{host(fact.StuckSeen, 0), by(fact.LockWaits, 0.2, fact.Subject{Cgroup: "/backup.service", Pid: 7, Command: "backup", Device: web})}, "", fact.Subject{}, ""},
	{"stuck-tasks", "a log that is not read", []fact.Fact{host(fact.StuckSeen, 0), by(fact.SocketWaits, 30, other)}, Warning, other, "30"},
	{"stuck-tasks", "a pipe that is not read", []fact.Fact{host(fact.StuckSeen, 0), by(fact.PipeWaits, 1, other)}, Notice, other, "grep pipe"},
	{"stuck-tasks", "a log that is slow for a moment", []fact.Fact{host(fact.StuckSeen, 0), by(fact.SocketWaits, 2, other)}, "", fact.Subject{}, ""},
	{"stuck-tasks", "none", []fact.Fact{host(fact.StuckSeen, 0)}, "", fact.Subject{}, ""},
	{"stuck-tasks", "a slow disk", stuck(8, 12, inContainer, "io_schedule", "folio_wait_bit_common", "filemap_read"), "", fact.Subject{}, ""},
	{"stuck-tasks", "a server that is late", stuck(8, 4, inContainer, "fuse_get_req", "fuse_statfs"), "", fact.Subject{}, ""},
	{"stuck-tasks", "a disk that has stopped", stuck(1, 25, inContainer, "io_schedule", "folio_wait_bit_common", "filemap_read"), Warning, fact.Subject{Cgroup: inContainer, Pid: 7, Command: "df"}, "a disk"},
	{"stuck-tasks", "a daemon of the host that always waits so", stuck(1, 60, "/system.slice/agent.service", "vendor_ioctl"), Notice, fact.Subject{Cgroup: "/system.slice/agent.service", Pid: 7, Command: "df"}, "a task waited for the kernel"},
	{"stuck-tasks", "a monitor of the host", stuck(80, 9, "/system.slice/monitor.service", "fuse_get_req", "__fuse_simple_request", "fuse_statfs"), Warning, fact.Subject{Cgroup: "/system.slice/monitor.service", Pid: 7, Command: "df"}, "nfs files.example:/a on /mnt"},
	{"stuck-tasks", "an NFS server", stuck(1, 9, inContainer, "rpc_wait_bit_killable", "__rpc_execute", "nfs4_proc_getattr"), Warning, fact.Subject{Cgroup: inContainer, Pid: 7, Command: "df"}, "umount"},
	{"stuck-tasks", "a frozen file system", stuck(1, 9, inContainer, "percpu_rwsem_wait", "__percpu_down_read", "mnt_want_write", "do_open"), Warning, fact.Subject{Cgroup: inContainer, Pid: 7, Command: "df"}, "fsfreeze --unfreeze"},
	{"slow-disk", "as usual", append(disk(5, 0.1, 5), host(fact.DiskP99, 20), host(fact.BaseDisk, 5)), "", fact.Subject{}, ""},

	{"drop-caches", "none", drops(0, 0), "", fact.Subject{}, ""},
	{"drop-caches", "an operator's", append(drops(1, 1), by(fact.DropsBy, 1, fact.Subject{Command: "sysctl"})), Notice, fact.Subject{}, "1 of 1"},
	{"drop-caches", "a cure of the doctor", append(drops(0, 1), by(fact.DropsBy, 1, other)), Notice, other, "1 of 1"},
	{"drop-caches", "slab alone", drops(0, 9), Notice, fact.Subject{}, "compact_memory"},
	{"drop-caches", "again and again", append(drops(9, 9), by(fact.DropsBy, 8, logger), by(fact.DropsBy, 1, other)), Warning, logger, "8 of 9"},
	{"drop-caches", "the log does not show it", drops(9, 0), Warning, fact.Subject{}, "again and again"},
	{"drop-caches", "a command that ends each time", append(drops(9, 9), by(fact.DropsBy, 9, fact.Subject{Command: "sysctl"})), Warning, fact.Subject{}, "by sysctl"},
	{"drop-caches", "a command that the drains show", append(drops(9, 9), by(fact.DropsBy, 9, fact.Subject{Command: "sysctl"}), by(fact.DrainsBy, 0.4, cron), by(fact.DrainsBy, 0.9, logger)), Warning, cron, "by sysctl"},
	{"drop-caches", "a command that ends each time, whose group is known", append(drops(9, 9), by(fact.DrainsBy, 0.4, fact.Subject{Pid: 5, Cgroup: cron.Cgroup, Command: cron.Command, Kernel: cron.Kernel}), by(fact.DrainsBy, 0.4, cron)), Warning, cron, "9"},
	{"drop-caches", "containers at their limit reclaim", append(drops(0, 0), reclaims(5, inContainer, 40)...), "", fact.Subject{}, ""},
	{"drop-caches", "a program of the host with a limit reclaims its own memory", append(drops(0, 0), append(reclaims(5, cron.Cgroup, 0), group(fact.GroupLimit, cron.Cgroup, 1<<20))...), "", fact.Subject{}, ""},
	{"drop-caches", "a program of the host reclaims once", append(drops(0, 0), reclaims(0.1, cron.Cgroup, 0)...), "", fact.Subject{}, ""},
	{"drop-caches", "a program of the host reclaims a container's memory", append(drops(0, 0), reclaims(5, cron.Cgroup, 0)...), Notice, fact.Subject{Cgroup: cron.Cgroup, Pid: 7, Command: "senpai"}, "5/s"},
	{"drop-caches", "and the container waits", append(drops(0, 0), append(reclaims(5, cron.Cgroup, 0), group(fact.GroupIOFull, inContainer, 0.6))...), Warning, fact.Subject{Cgroup: cron.Cgroup, Pid: 7, Command: "senpai"}, "900/s"},
	{"drop-caches", "two that do so", append(drops(8, 8), by(fact.DropsBy, 4, logger), by(fact.DropsBy, 4, other)), Warning, fact.Subject{}, "4 of 8"},

	{"dirty-limit", "early writes", dirty(4800<<20, 24<<30, host(fact.DirtyRatio, 0.2), host(fact.DirtyExpire, 0.01)), Notice, fact.Subject{}, "10 ms"},
	{"dirty-limit", "the defaults", dirty(4800<<20, 24<<30, host(fact.DirtyRatio, 0.2)), "", fact.Subject{}, ""},
	{"dirty-limit", "the defaults, on a small host that is full", dirty(7<<20, 256<<20, host(fact.DirtyRatio, 0.2), host(fact.DirtyNear, 1), host(fact.DirtyWaits, 0.9)), "", fact.Subject{}, ""},
	{"dirty-limit", "bytes that suit a small host", dirty(8<<20, 128<<20, host(fact.DirtyBytes, 8<<20)), "", fact.Subject{}, ""},
	{"dirty-limit", "bytes for a database", dirty(64<<20, 24<<30, host(fact.DirtyBytes, 64<<20)), "", fact.Subject{}, ""},
	{"dirty-limit", "a small ratio of much memory", dirty(240<<20, 24<<30, host(fact.DirtyRatio, 0.01)), "", fact.Subject{}, ""},
	{"dirty-limit", "the setting is unknown", dirty(1<<20, 24<<30), "", fact.Subject{}, ""},
	{"dirty-limit", "a slow disk, and programs that only read", dirty(4<<20, 24<<30, host(fact.DirtyBytes, 4<<20), host(fact.DirtyNear, 0.1), host(fact.DirtyWaits, 0.9)), Notice, fact.Subject{}, "vm.dirty_bytes 4.0 MiB"},
	{"dirty-limit", "no pressure files", dirty(4<<20, 24<<30, host(fact.DirtyBytes, 4<<20), host(fact.DirtyNear, 1)), Notice, fact.Subject{}, "100 %"},
	{"dirty-limit", "writers wait", dirty(64<<10, 24<<30, host(fact.DirtyBytes, 64<<10), host(fact.DirtyNear, 0.9), host(fact.DirtyWaits, 0.9)), Warning, fact.Subject{}, "sysctl vm.dirty_ratio=20"},
	{"dirty-limit", "no ratio at all", dirty(0, 24<<30, host(fact.DirtyRatio, 0), host(fact.DirtyNear, 0.9), host(fact.DirtyWaits, 0.9)), Warning, fact.Subject{}, "vm.dirty_ratio 0 %"},

	{"stat-readers", "some", []fact.Fact{host(fact.RstatWaits, 100)}, "", fact.Subject{}, ""},
	{"stat-readers", "many", []fact.Fact{host(fact.RstatWaits, 5000), by(fact.RstatBy, 4000, other)}, Warning, other, "4,000/s"},

	{"fanotify-wait", "no scanner", []fact.Fact{host(fact.Scanners, 0)}, "", fact.Subject{}, ""},
	{"fanotify-wait", "a scanner that answers at once", []fact.Fact{host(fact.Scanners, 1), host(fact.FanotifyHeld, 0), by(fact.FanotifyBy, 9000, scanner)}, "", fact.Subject{}, ""},
	{"fanotify-wait", "scans of some new files", []fact.Fact{host(fact.Scanners, 1), host(fact.FanotifyHeld, 0.05), by(fact.FanotifyBy, 9000, scanner), group(fact.FanotifyWait, inContainer, 0.05)}, "", fact.Subject{}, ""},
	{"fanotify-wait", "it holds up a container at times", []fact.Fact{host(fact.Scanners, 1), host(fact.FanotifyHeld, 0.2), by(fact.FanotifyBy, 300, scanner), group(fact.FanotifyWait, inContainer, 0.2)}, Notice, scanner, "20 %"},
	{"fanotify-wait", "it holds up a container", []fact.Fact{host(fact.Scanners, 1), host(fact.FanotifyHeld, 0.9), by(fact.FanotifyBy, 300, scanner), group(fact.FanotifyWait, inContainer, 0.9)}, Warning, scanner, "wchan"},
	{"fanotify-wait", "it waits for a CPU, and answers at once", []fact.Fact{host(fact.Scanners, 1), host(fact.FanotifyHeld, 0.3), by(fact.FanotifyCPUWait, 0.4, scanner), by(fact.FanotifyBy, 9000, scanner), group(fact.FanotifyWait, inContainer, 0.3)}, "", fact.Subject{}, ""},
	{"fanotify-wait", "it holds up a backup of the host", []fact.Fact{host(fact.Scanners, 1), host(fact.FanotifyHeld, 0.9), by(fact.FanotifyBy, 300, scanner), group(fact.FanotifyWait, "/system.slice/backup.service", 0.9)}, Notice, scanner, "300/s"},
	{"fanotify-wait", "one of two", []fact.Fact{host(fact.Scanners, 2), host(fact.FanotifyHeld, 0.9), by(fact.FanotifyBy, 300, scanner), by(fact.FanotifyBy, 2, other), group(fact.FanotifyWait, inContainer, 0.9)}, Warning, scanner, "2; 300/s"},
	{"fanotify-wait", "two alike", []fact.Fact{host(fact.Scanners, 2), host(fact.FanotifyHeld, 0.9), by(fact.FanotifyBy, 300, scanner), by(fact.FanotifyBy, 300, other), group(fact.FanotifyWait, inContainer, 0.9)}, Warning, fact.Subject{}, "90 %"},

	{"mount-leak", "usual", []fact.Fact{host(fact.HostMounts, 500)}, "", fact.Subject{}, ""},
	{"mount-leak", "leaked", []fact.Fact{host(fact.HostMounts, 12_000)}, Warning, fact.Subject{}, "12,000"},

	{"mount-leak", "leaked in a container", []fact.Fact{host(fact.HostMounts, 500), by(fact.Mounts, 6000, other), by(fact.Mounts, 30, logger)}, Warning, other, "6,000"},

	{"mount-leak", "an engine's namespaces", []fact.Fact{host(fact.HostMounts, 500), by(fact.HeldMounts, 120, other)}, "", fact.Subject{}, ""},
	{"mount-leak", "a build in sandboxes on 64 CPUs", append(spaces(120, 90, 9000), host(fact.HostCPUs, 64)), "", fact.Subject{}, ""},
	{"mount-leak", "sandboxes of short commands", append(spaces(150, 10, 6000), host(fact.HostCPUs, 2)), "", fact.Subject{}, ""},
	{"mount-leak", "helpers with a namespace each", append(spaces(150, 90, 6000), host(fact.HostCPUs, 2)), Notice, fact.Subject{Cgroup: hogs, Pid: 8}, "150"},
	{"mount-leak", "many helpers with a namespace each", append(spaces(400, 350, 12_000), host(fact.HostCPUs, 2)), Warning, fact.Subject{Cgroup: hogs, Pid: 8}, "12,000"},
	{"mount-leak", "small virtual machines, each with few mounts", append(spaces(400, 400, 2000), host(fact.HostCPUs, 64)), Notice, fact.Subject{Cgroup: hogs, Pid: 8}, "400"},
	{"mount-leak", "namespaces that are kept", []fact.Fact{host(fact.HostMounts, 500), by(fact.HeldMounts, 400, other)}, Warning, other, "400"},

	{"memory-growth", "full, and still", []fact.Fact{group(fact.GroupHeld, web, 90<<20), group(fact.GroupLimit, web, 100<<20)}, "", fact.Subject{}, ""},
	{"memory-growth", "hours to go", growing(1<<30, 100<<20, 100<<10), "", fact.Subject{}, ""},
	{"memory-growth", "some minutes to go", growing(1<<30, 424<<20, 1<<20), Notice, fact.Subject{Cgroup: web}, "in 10m0s"},
	{"memory-growth", "over two hours, and far from its limit", append(growing(1<<50, 0, 1<<20), host(fact.MemoryAvailable, 8<<30)), "", fact.Subject{}, ""},
	{"memory-growth", "the host is full before the limit is reached", append(growing(100<<30, 0, 1<<20), host(fact.MemoryAvailable, 600<<20)), Notice, fact.Subject{Cgroup: web}, "the memory of the host in 10m0s"},
	{"memory-growth", "no limit, and little yet", append(growingFor(10, 1<<20, 0, 1<<20)[1:], host(fact.MemoryAvailable, 60<<20)), "", fact.Subject{}, ""},
	{"memory-growth", "no limit", append(growing(1<<20, 0, 1<<20)[1:], host(fact.MemoryAvailable, 60<<20)), Warning, fact.Subject{Cgroup: web}, "the memory of the host in 1m0s"},
	{"memory-growth", "soon, as it has before", append(growing(200<<20, 100<<20, 1<<20), group(fact.GroupUsage, web, 110<<20), group(fact.GroupPeak, web, 150<<20)), Notice, fact.Subject{Cgroup: web}, "150 MiB"},
	{"memory-growth", "soon, and at its highest", append(growing(200<<20, 100<<20, 1<<20), group(fact.GroupUsage, web, 110<<20), group(fact.GroupPeak, web, 110<<20)), Warning, fact.Subject{Cgroup: web}, ""},
	{"memory-growth", "soon, and it was at its limit before", append(growing(200<<20, 100<<20, 1<<20), group(fact.GroupUsage, web, 110<<20), group(fact.GroupPeak, web, 199<<20)), Warning, fact.Subject{Cgroup: web}, ""},
	{"memory-growth", "soon", growing(200<<20, 100<<20, 1<<20), Warning, fact.Subject{Cgroup: web}, "50s to 3m20s"},

	{"disk-growth", "still", []fact.Fact{device(fact.DiskFree, "/", 1<<30), device(fact.DiskInodes, "/", 1000)}, "", fact.Subject{}, ""},
	{"disk-growth", "hours to go", filling(fact.DiskFree, 1<<40, fact.DiskGrowth, 10<<20), "", fact.Subject{}, ""},
	{"disk-growth", "a writer among others", append(filling(fact.DiskFree, 60<<30, fact.DiskGrowth, 20<<20), by(fact.WrittenBy, 19<<20, logger), by(fact.WrittenBy, 30<<10, other)), Notice, logger, "20 MiB/s"},
	{"disk-growth", "no single writer", append(filling(fact.DiskFree, 60<<30, fact.DiskGrowth, 20<<20), by(fact.WrittenBy, 9<<20, logger), by(fact.WrittenBy, 8<<20, other)), Notice, fact.Subject{}, "60 GiB"},
	{"disk-growth", "soon", append(filling(fact.DiskFree, 1<<30, fact.DiskGrowth, 20<<20), by(fact.WrittenBy, 19<<20, logger)), Warning, logger, "51s"},
	{"disk-growth", "files", append(filling(fact.DiskInodes, 900_000, fact.InodeGrowth, 2000), by(fact.InodesBy, 900, logger), by(fact.InodesBy, 1000, other), by(fact.InodesBy, 950, logger)), Notice, logger, "1,850/s"},

	{"log-storm", "usual", []fact.Fact{host(fact.LogsSeen, 9), group(fact.LogGrowth, web, 20<<10)}, "", fact.Subject{}, ""},
	{"log-storm", "much", []fact.Fact{host(fact.LogsSeen, 9), group(fact.LogGrowth, web, 4<<20)}, Notice, fact.Subject{Cgroup: web}, "14 GiB"},
	{"log-storm", "and another container waits for the disk", []fact.Fact{host(fact.LogsSeen, 9), group(fact.LogGrowth, web, 4<<20), group(fact.GroupIOFull, hogs, 0.6)}, Warning, fact.Subject{Cgroup: web}, "4.0 MiB/s"},

	{"container-churn", "a busy day", []fact.Fact{host(fact.EnginesSeen, 2), host(fact.HostCPUs, 2), host(fact.Starts, 0.4), by(fact.ClientBusy, 0.9, logger)}, "", fact.Subject{}, ""},
	{"container-churn", "starts without a client that is always there", []fact.Fact{host(fact.EnginesSeen, 2), host(fact.HostCPUs, 2), host(fact.Starts, 3), by(fact.ClientBusy, 0.1, logger)}, "", fact.Subject{}, ""},
	{"container-churn", "several clients", []fact.Fact{host(fact.EnginesSeen, 2), host(fact.HostCPUs, 2), host(fact.Starts, 3), by(fact.ClientBusy, 0.3, logger), by(fact.ClientBusy, 0.4, other), by(fact.ClientBusy, 0.3, locker)}, "", fact.Subject{}, ""},
	{"container-churn", "without a pause", []fact.Fact{host(fact.EnginesSeen, 2), host(fact.HostCPUs, 2), host(fact.Starts, 1.4), by(fact.ClientBusy, 0.9, logger), by(fact.ClientBusy, 0.1, other)}, Notice, logger, "1.4/s"},
	{"container-churn", "too few to harm another container", []fact.Fact{host(fact.EnginesSeen, 2), host(fact.HostCPUs, 2), host(fact.Starts, 1.4), by(fact.ClientBusy, 0.9, logger), group(fact.GroupIOFull, hogs, 0.6)}, Notice, logger, "90 %"},
	{"container-churn", "and another container waits for the disk", []fact.Fact{host(fact.EnginesSeen, 2), host(fact.HostCPUs, 2), host(fact.Starts, 6), by(fact.ClientBusy, 0.9, logger), group(fact.GroupIOFull, hogs, 0.6)}, Warning, logger, "90 %"},

	{"listen-overflow", "none", []fact.Fact{host(fact.NamesSeen, 3), by(fact.ListenDrops, 0, other)}, "", fact.Subject{}, ""},
	{"listen-overflow", "a cookie", []fact.Fact{host(fact.NamesSeen, 3), by(fact.HalfOpenDrops, 0.1, other)}, "", fact.Subject{}, ""},
	{"listen-overflow", "half-open connections", []fact.Fact{host(fact.NamesSeen, 3), by(fact.HalfOpenDrops, 30, other)}, Warning, other, "syn-recv"},
	{"listen-overflow", "many", []fact.Fact{host(fact.NamesSeen, 3), by(fact.ListenDrops, 40, other)}, Warning, other, "40/s"},

	{"listen-overflow", "two wait at a Unix socket", []fact.Fact{host(fact.NamesSeen, 3), by(fact.UnixWaiting, 2, other)}, "", fact.Subject{}, ""},
	{"listen-overflow", "many wait at a Unix socket", []fact.Fact{host(fact.NamesSeen, 3), by(fact.UnixWaiting, 9, fact.Subject{Pid: 5, Device: "/run/php.sock"})}, Notice, fact.Subject{Pid: 5}, "/run/php.sock"},

	{"profiler", "tracing of some events", []fact.Fact{host(fact.ProfilerSeen, 1), device(fact.TraceEvents, "/sys/kernel/tracing/instances/ras", 100)}, "", fact.Subject{}, ""},
	{"profiler", "tracing of scheduling", []fact.Fact{host(fact.ProfilerSeen, 1), device(fact.TraceEvents, "/sys/kernel/tracing", 30_000)}, Notice, fact.Subject{}, "echo 0 >/sys/kernel/tracing/events/enable"},
	{"profiler", "tracing of system calls", []fact.Fact{host(fact.ProfilerSeen, 1), device(fact.TraceEvents, "/sys/kernel/tracing", 300_000)}, Warning, fact.Subject{}, "300,000/s"},

	{"tcp-retransmits", "a few", []fact.Fact{host(fact.NamesSeen, 3), by(fact.Retransmits, 5, other), by(fact.RetransShare, 0.3, other), by(fact.Unanswered, 0.5, other)}, "", fact.Subject{}, ""},
	{"tcp-retransmits", "a small share of many", []fact.Fact{host(fact.NamesSeen, 3), by(fact.Retransmits, 500, other), by(fact.RetransShare, 0.01, other)}, "", fact.Subject{}, ""},
	{"tcp-retransmits", "many", []fact.Fact{host(fact.NamesSeen, 3), by(fact.Retransmits, 500, other), by(fact.RetransShare, 0.07, other)}, Warning, other, "7.0 %"},
	{"tcp-retransmits", "handshakes without an answer", []fact.Fact{host(fact.NamesSeen, 3), by(fact.Unanswered, 12, other)}, Notice, other, "12/s"},
	{"udp-drops", "a few", []fact.Fact{host(fact.NamesSeen, 3), by(fact.DatagramDrops, 5, other)}, "", fact.Subject{}, ""},
	{"udp-drops", "many", []fact.Fact{host(fact.NamesSeen, 3), by(fact.DatagramDrops, 4000, other)}, Notice, other, "4,000/s"},
	{"udp-drops", "no memory", []fact.Fact{host(fact.NamesSeen, 3), by(fact.DatagramMemory, 40, other), by(fact.DatagramMemory, 20, logger)}, Warning, fact.Subject{}, "60/s"},

	{"slow-allocation", "usual", []fact.Fact{host(fact.AllocMs, 60)}, "", fact.Subject{}, ""},
	{"slow-allocation", "a quarter is kept free", []fact.Fact{host(fact.AllocMs, 60), host(fact.MemKept, 0.25)}, Notice, fact.Subject{}, "25 %"},
	{"slow-allocation", "huge pages for nothing", []fact.Fact{host(fact.AllocMs, 60), host(fact.MemHuge, 0.4)}, Notice, fact.Subject{}, "40 %"},
	{"slow-allocation", "little is kept free", []fact.Fact{host(fact.AllocMs, 60), host(fact.MemKept, 0.05)}, "", fact.Subject{}, ""},
	{"slow-allocation", "slow", []fact.Fact{host(fact.AllocMs, 800)}, Warning, fact.Subject{}, "800 ms"},
	{"slow-allocation", "very slow", []fact.Fact{host(fact.AllocMs, 3000), host(fact.MemcgDying, 50_000)}, Critical, fact.Subject{}, "50,000"},

	{"old-kernel", "new", []fact.Fact{word(fact.KernelRelease, "6.1.0-13-amd64")}, "", fact.Subject{}, ""},
	{"old-kernel", "the version of the fixes", []fact.Fact{word(fact.KernelRelease, "5.5.0")}, "", fact.Subject{}, ""},
	{"old-kernel", "before the last of them", []fact.Fact{word(fact.KernelRelease, "5.4.0-150-generic")}, Notice, fact.Subject{}, "eef1a429f234"},
	{"old-kernel", "old", []fact.Fact{word(fact.KernelRelease, "4.19.112+")}, Notice, fact.Subject{}, "de53fd7aedb1"},
	{"old-kernel", "no version", []fact.Fact{word(fact.KernelRelease, "custom")}, "", fact.Subject{}, ""},

	{"slow-machine", "fine", []fact.Fact{host(fact.CheckCPU, 400), host(fact.CheckMem, 5000), host(fact.CheckDisk, 3)}, "", fact.Subject{}, ""},
	{"slow-machine", "no disk to try", []fact.Fact{host(fact.CheckCPU, 400), host(fact.CheckMem, 5000)}, "", fact.Subject{}, ""},
	{"slow-machine", "a slow CPU", []fact.Fact{host(fact.CheckCPU, 20), host(fact.CheckMem, 5000), host(fact.CheckDisk, 3)}, Warning, fact.Subject{}, "20 MiB/s"},
	{"slow-machine", "slow reads", []fact.Fact{host(fact.CheckCPU, 400), host(fact.CheckMem, 5000), host(fact.CheckRead, 120)}, Warning, fact.Subject{}, "120 ms"},
	{"slow-machine", "heat", []fact.Fact{host(fact.CheckCPU, 400), host(fact.CheckMem, 5000), host(fact.CPUThermal, 9)}, Warning, fact.Subject{}, "9/s"},
	{"slow-machine", "as usual", []fact.Fact{host(fact.CheckCPU, 300), host(fact.CheckMem, 5000), host(fact.CheckDisk, 9), usual(fact.CheckCPU, 400), usual(fact.CheckDisk, 1)}, "", fact.Subject{}, ""},
	{"slow-machine", "a CPU slower than it was", []fact.Fact{host(fact.CheckCPU, 200), host(fact.CheckMem, 5000), usual(fact.CheckCPU, 400)}, Warning, fact.Subject{}, "usually 400 MiB/s"},
	{"slow-machine", "a disk slower than it was", []fact.Fact{host(fact.CheckCPU, 400), host(fact.CheckMem, 5000), host(fact.CheckDisk, 30), usual(fact.CheckDisk, 2)}, Warning, fact.Subject{}, "usually 2.0 ms"},
	{"slow-machine", "some steal", []fact.Fact{host(fact.CheckCPU, 400), host(fact.CheckMem, 5000), host(fact.CPUSteal, 0.05)}, "", fact.Subject{}, ""},
	{"slow-machine", "much steal", []fact.Fact{host(fact.CheckCPU, 400), host(fact.CheckMem, 5000), host(fact.CPUSteal, 0.2)}, Warning, fact.Subject{}, "20 %"},
	{"slow-machine", "a slow disk", []fact.Fact{host(fact.CheckCPU, 400), host(fact.CheckMem, 5000), host(fact.CheckDisk, 600)}, Warning, fact.Subject{}, "600 ms"},
}

// noisy returns the facts of a host with two CPUs on which web waits and hogs uses CPU.
func noisy(busy, hog, victim, wait, throttled float64) []fact.Fact {
	return []fact.Fact{
		host(fact.GroupsSeen, 9), host(fact.TasksSeen, 9), host(fact.CPUBusy, busy), host(fact.CPUSteal, 0), host(fact.HostCPUs, 2), host(fact.GroupsCPU, hog+victim),
		group(fact.GroupCPU, hogs, hog), group(fact.GroupCPU, web, victim), group(fact.GroupCPU, web+"/inner", victim),
		group(fact.GroupLongest, web, wait), group(fact.GroupLongest, hogs, 3),
		group(fact.GroupThrottled, web, throttled),
		by(fact.ProcessCPU, hog, fact.Subject{Cgroup: hogs, Pid: 8, Command: "burn"}),
	}
}

// limited returns the facts of a host whose own limits are far.
func limited(more ...fact.Fact) []fact.Fact {
	return append([]fact.Fact{host(fact.GroupsSeen, 9), host(fact.HostMaxPids, 1000), host(fact.HostThreads, 500), host(fact.HostMaxFiles, 1000), host(fact.HostFiles, 10)}, more...)
}

// filling returns the facts of a file system that shrinks by the rate, in the slowest third by
// half of it.
func filling(free string, left float64, grew string, rate float64) []fact.Fact {
	return []fact.Fact{device(fact.DiskFree, "/", 1<<40), device(free, "/data", left), device(grew, "/data", rate), device(grew+"_low", "/data", rate/2)}
}

// crowded returns the facts of a host with two CPUs that five containers use.
func crowded(wait float64) []fact.Fact {
	fs := []fact.Fact{host(fact.GroupsSeen, 9), host(fact.TasksSeen, 9), host(fact.CPUBusy, 1), host(fact.CPUSteal, 0), host(fact.HostCPUs, 2), host(fact.GroupsCPU, 2)}
	for i := range 5 {
		g := fmt.Sprintf("/docker/%d", i)
		fs = append(fs, group(fact.GroupCPU, g, 0.4), group(fact.GroupLongest, g, wait))
	}
	return fs
}

// wants returns the fact of waits of one of them.
func wants(n int, waits float64) fact.Fact {
	return group(fact.GroupWait, fmt.Sprintf("/docker/%d", n), waits)
}

// growing returns the facts of a container whose memory grows by the rate, in the slowest third
// by half of it, and in the fastest by twice as much.
func growing(limit, held, rate float64) []fact.Fact { return growingFor(60, limit, held, rate) }

func growingFor(over, limit, held, rate float64) []fact.Fact {
	grows := group(fact.GroupGrowth, web, rate)
	grows.Over = over
	return []fact.Fact{group(fact.GroupLimit, web, limit), group(fact.GroupHeld, web, held), grows, group(fact.GroupGrowthLow, web, rate/2), group(fact.GroupGrowthHigh, web, rate*2)}
}

func disk(flushes, busy, writes float64) []fact.Fact {
	return []fact.Fact{device(fact.DiskFlush, "vda", flushes), device(fact.DiskBusy, "vda", busy), group(fact.GroupWrites, web, writes)}
}

func TestRules(t *testing.T) {
	rules := make(map[string]Rule)
	for _, r := range All() {
		rules[r.Name] = r
	}
	verdicts := make(map[string]map[bool]bool)
	for _, c := range cases {
		t.Run(c.rule+"/"+c.name, func(t *testing.T) {
			r, ok := rules[c.rule]
			if !ok {
				t.Fatal("no such rule")
			}
			var s fact.Set
			s.Add(c.facts...)
			if m := r.Missing(&s); len(m) > 0 {
				t.Fatalf("the case lacks %v", m)
			}
			found := r.Judge(&s)
			if verdicts[c.rule] == nil {
				verdicts[c.rule] = make(map[bool]bool)
			}
			verdicts[c.rule][len(found) > 0] = true
			if c.want == "" {
				if len(found) > 0 {
					t.Fatalf("found %+v", found)
				}
				return
			}
			if len(found) != 1 {
				t.Fatalf("%d findings: %+v", len(found), found)
			}
			checkFinding(t, found[0], c.want, c.culprit, c.text)
		})
	}
	for name := range rules {
		if !verdicts[name][true] || !verdicts[name][false] {
			t.Errorf("%s: no case with a finding, or no case without one", name)
		}
	}
}

func checkFinding(t *testing.T, f Finding, want Severity, culprit fact.Subject, text string) {
	t.Helper()
	if f.Severity != want {
		t.Errorf("severity %s, want %s", f.Severity, want)
	}
	if f.Culprit.Cgroup != culprit.Cgroup || f.Culprit.Pid != culprit.Pid || f.Culprit.Device != culprit.Device || f.Culprit.Command != culprit.Command {
		t.Errorf("culprit %+v, want %+v", f.Culprit, culprit)
	}
	all := f.Title
	for _, e := range f.Evidence {
		all += "\n" + e.What + " " + e.Found + " " + e.Healthy
		if e.What == "" || e.Found == "" || e.Healthy == "" {
			t.Errorf("evidence without a figure or a healthy value: %+v", e)
		}
	}
	for _, c := range f.Cures {
		all += "\n" + c.What + " " + c.Command
	}
	if !strings.Contains(all, text) {
		t.Errorf("%q is missing from\n%s", text, all)
	}
	if f.Title == "" || len(f.Evidence) == 0 || len(f.Cures) == 0 {
		t.Errorf("a finding without title, evidence or cure: %+v", f)
	}
}

// A rule without its facts does not judge, and no rule panics on a host without facts.
func TestRulesWithoutFacts(t *testing.T) {
	for _, r := range All() {
		var s fact.Set
		if len(r.Needs) == 0 || len(r.Missing(&s)) != len(r.Needs) {
			t.Errorf("%s: %v missing of %v", r.Name, r.Missing(&s), r.Needs)
		}
	}
}

// Every rule documents itself.
func TestRulesAreDocumented(t *testing.T) {
	seen := make(map[string]bool)
	for _, r := range All() {
		if seen[r.Name] || r.Signal == "" || r.Threshold == "" || r.Why == "" || r.Source == "" || r.Judge == nil {
			t.Errorf("rule %q: duplicate, or without signal, threshold, reason or source", r.Name)
		}
		seen[r.Name] = true
	}
}

func TestFigureFormats(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{number(0), "0"}, {number(999), "999"}, {number(1000), "1,000"}, {number(1234567), "1,234,567"}, {number(-5000), "-5,000"},
		{percent(0), "0 %"}, {percent(0.051), "5.1 %"}, {percent(0.5), "50 %"},
		{millis(0.03), "30 µs"}, {millis(8), "8.0 ms"}, {millis(60), "60 ms"}, {millis(1500), "1.50 s"},
		{bytes(12), "12 B"}, {bytes(1 << 20), "1.0 MiB"}, {bytes(500 << 20), "500 MiB"},
		{groupPath("/docker/a-b_c"), "/docker/a-b_c"}, {groupPath("/a;reboot"), "/GROUP"}, {groupPath("/$(x)"), "/GROUP"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}

// A tracer's processes suffer, a container once, and so do others that wait.
func TestTracedVictims(t *testing.T) {
	var s fact.Set
	s.Add(traces(20_000, operator, fact.Subject{Cgroup: inContainer, Pid: 7}, by(fact.Traced, 10_000, fact.Subject{Cgroup: inContainer, Pid: 8, Device: "9"}),
		by(fact.Traced, 10_000, fact.Subject{Cgroup: hogs, Pid: 6, Device: "5"}), host(fact.CPUBusy, 0.99), group(fact.GroupLongest, web, 0.5))...)
	found := ptrace().Judge(&s)
	if len(found) != 1 || len(found[0].Victims) != 2 || found[0].Victims[0].Pid != 7 || found[0].Victims[1].Cgroup != web || len(found[0].Evidence) != 3 {
		t.Errorf("%+v", found)
	}
}
