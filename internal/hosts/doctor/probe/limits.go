package probe

import (
	"context"
	"fmt"
	"maps"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/proc"
)

// maxTimers bounds how much is read of the list of a process's timers, in bytes.
const maxTimers = 16 << 20

// limitsShown is the share of a limit from which its use is a fact, and its holder searched.
const limitsShown = 0.5

// limitsProbe reads limits that all containers of the host share and that few programs name when
// they fail: asynchronous requests, pseudo terminals, neighbours, and keys and queued signals of a
// user. The walk of the inotify probe finds those that are counted by open files.
func limitsProbe() Probe {
	return Probe{
		Name: "limits", Sees: "limits of the kernel that are nearly reached", Once: true,
		Gives: []string{fact.LimitsSeen, fact.LimitUsed, fact.ProcessLocked, fact.ProcessMapped, fact.FileSize},
		Open:  moment(readLimits),
	}
}

// Limits of the kernel, as sysctl(8) names them: sysctl/fs.rst, pty(7), keyrings(7).
const (
	LimitAIO         = "fs.aio-max-nr"
	LimitPTY         = "kernel.pty.max"
	LimitKeys        = "kernel.keys.maxkeys"
	LimitNeighbours  = "net.ipv4.neigh.default.gc_thresh3"
	LimitNeighbours6 = "net.ipv6.neigh.default.gc_thresh3"
	LimitFanotify    = "fs.fanotify.max_user_groups"
	LimitPipes       = "fs.pipe-user-pages-soft"
	LimitSignals     = "RLIMIT_SIGPENDING" // of a process, but its use is counted for the user
	LimitProcesses   = "RLIMIT_NPROC"      // the same
)

func readLimits(ctx context.Context, h Host) ([]fact.Fact, error) {
	var fs []fact.Fact
	seen := 0.0
	add := func(name string, share float64, holder func() fact.Subject) {
		seen++
		if share > limitsShown {
			s := holder()
			s.Device = name
			fs = append(fs, fact.Fact{Name: fact.LimitUsed, Value: share, Unit: fact.Share, Subject: s})
		}
	}
	if share, ok := shareOf(h, "fs/aio-nr", "fs/aio-max-nr", ""); ok {
		add(LimitAIO, share, func() fact.Subject { return mostOf(ctx, h, contexts) })
	}
	// Outside the host's own instance of devpts, the reserve cannot be had (fs/devpts/inode.c).
	if share, ok := shareOf(h, "kernel/pty/nr", "kernel/pty/max", "kernel/pty/reserve"); ok {
		add(LimitPTY, share, func() fact.Subject { return mostOf(ctx, h, terminals) })
	}
	users, err := read(string(h.Proc) + "/key-users") // a kernel may have no keys
	if err == nil {
		for uid, share := range keyShares(users) {
			add(LimitKeys, share, func() fact.Subject { return processOfUser(ctx, h, uid) })
		}
	}
	// One table serves all network namespaces (net/core/neighbour.c).
	table, _ := read(string(h.Proc) + "/net/stat/" + tables()[LimitNeighbours])
	most, err := number(string(h.Proc) + "/sys/net/ipv4/neigh/default/gc_thresh3")
	if counters := neighbourCounters(table); counters != nil && err == nil && most > 0 {
		add(LimitNeighbours, counters["entries"]/most, func() fact.Subject { return mostOf(ctx, h, neighbours) })
	}
	locked, mapped := make(map[int]float64), make(map[int]float64)
	for uid, u := range usersOf(ctx, h) {
		maps.Copy(locked, u.locked)
		maps.Copy(mapped, u.mapped)
		add(LimitSignals, u.signals, func() fact.Subject {
			return mostOf(ctx, h, func(dir string) int { return queuedSignals(dir, uid) })
		})
		if share, pid := u.processShare(ctx, h, uid); pid > 0 {
			add(LimitProcesses, share, func() fact.Subject { return processOf(h, pid) })
		}
	}
	fs = slices.Concat(fs, memoryShares(h, locked, "Max locked memory", fact.ProcessLocked),
		memoryShares(h, mapped, "Max address space", fact.ProcessMapped), fileSizes(ctx, h))
	return append(fs, host(fact.LimitsSeen, seen, fact.Count)), nil
}

// neighbours counts the neighbours in a process's network namespace, arp(7).
func neighbours(dir string) int {
	table, _ := read(dir + "/net/arp") // none if it has ended
	return strings.Count(table, "\n")
}

// queuedSignals counts what may be queued for a process of the user: the kinds of real-time signals,
// which begin at 32, that wait for it, and its POSIX timers, for each of which timer_create(2) reserves
// a signal (proc_pid_timers(5)). Other signals are queued once.
func queuedSignals(dir string, uid uint32) (n int) {
	text, _ := read(dir + "/status")            // none if it has ended
	users, _ := proc.Field([]byte(text), "Uid") // "0\t0\t0\t0", the real one first
	if owner, _, _ := strings.Cut(users, "\t"); owner != strconv.FormatUint(uint64(uid), 10) {
		return 0
	}
	for _, name := range []string{"SigPnd", "ShdPnd"} {
		field, _ := proc.Field([]byte(text), name)
		if set, err := strconv.ParseUint(field, 16, 64); err == nil {
			n += bits.OnesCount64(set >> 31)
		}
	}
	timers, _ := countPrefix(dir+"/timers", "ID: ", maxTimers) // a kernel may not list them
	return n + int(timers)
}

// shareOf returns the share of a limit that is in use, of the part without a reserve. The names
// are files below /proc/sys; false if one cannot be read.
func shareOf(h Host, used, most, reserve string) (float64, bool) {
	sys := string(h.Proc) + "/sys/"
	n, err := number(sys + used)
	limit, err2 := number(sys + most)
	if reserve != "" {
		if kept, err := number(sys + reserve); err == nil {
			limit -= kept
		}
	}
	return n / limit, err == nil && err2 == nil && limit > 0
}

// keyShares returns the share of its keys that each user has, by /proc/key-users of
// keyrings(7): "0: 22 21/21 16/1000000 950/25000000", the fourth.
func keyShares(text string) map[uint32]float64 {
	shares := make(map[uint32]float64)
	for line := range strings.Lines(text) {
		var uid uint32
		var usage, made, counted, keys, most float64
		if n, _ := fmt.Sscanf(strings.TrimSpace(line), "%d: %f %f/%f %f/%f", &uid, &usage, &made, &counted, &keys, &most); n == 6 && most > 0 {
			shares[uid] = keys / most
		}
	}
	return shares
}

// mostOf returns the process that has most of something.
func mostOf(ctx context.Context, h Host, count func(dir string) int) (holder fact.Subject) {
	pids, _ := h.Proc.Pids() // without a list no holder is known
	most, pid := 0, 0
	for _, p := range pids {
		if ctx.Err() != nil {
			return fact.Subject{}
		}
		if n := count(string(h.Proc) + "/" + strconv.Itoa(p)); n > most {
			most, pid = n, p
		}
	}
	if pid == 0 {
		return fact.Subject{}
	}
	return processOf(h, pid)
}

// contexts counts a process's contexts for asynchronous requests, whose rings are mapped
// (fs/aio.c, aio_setup_ring).
func contexts(dir string) int {
	maps, _ := read(dir + "/maps") // none if it has ended
	return strings.Count(maps, "/[aio]")
}

// terminals counts the pseudo terminals that a process has made, as the open files of their
// masters.
func terminals(dir string) (n int) {
	files, _ := os.ReadDir(dir + "/fd") // none if it has ended
	for _, f := range files {
		to, _ := os.Readlink(filepath.Join(dir, "fd", f.Name()))
		if slices.Contains([]string{"/dev/ptmx", "/dev/pts/ptmx"}, to) {
			n++
		}
	}
	return n
}

// processOfUser returns one of a user's processes, the first.
func processOfUser(ctx context.Context, h Host, uid uint32) fact.Subject {
	pids, _ := h.Proc.Pids() // without a list no process is known
	for _, pid := range pids {
		if owner, ok := ownerOf(h, pid); ok && owner == uid && ctx.Err() == nil {
			return processOf(h, pid)
		}
	}
	return fact.Subject{}
}
