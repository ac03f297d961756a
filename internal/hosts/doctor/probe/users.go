package probe

import (
	"context"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/proc"
)

// user has what the kernel counts for all processes of a user together, in whichever container they
// are (getrlimit(2)).
type user struct {
	signals float64         // share of RLIMIT_SIGPENDING
	threads float64         // compared with RLIMIT_NPROC
	of      map[int]int     // threads by process
	locked  map[int]float64 // bytes of memory by process that RLIMIT_MEMLOCK bounds
	mapped  map[int]float64 // bytes of address space by process that RLIMIT_AS bounds
}

// usersOf reads the users of all processes from proc_pid_status(5): "Uid" has the real one first,
// which the kernel counts by. The owner of a process's directory is root if the process may not be
// dumped, such as after setuid(2).
func usersOf(ctx context.Context, h Host) map[uint32]user {
	users := make(map[uint32]user)
	pids, _ := h.Proc.Pids() // without a list no user is known
	for _, pid := range pids {
		if ctx.Err() != nil {
			break
		}
		text, _ := read(string(h.Proc) + "/" + strconv.Itoa(pid) + "/status") // none if it has ended
		ids, _ := proc.Field([]byte(text), "Uid")
		real, _, _ := strings.Cut(ids, "\t")
		uid, err := strconv.ParseUint(real, 10, 32)
		count, _ := proc.Field([]byte(text), "Threads")
		threads, err2 := strconv.Atoi(count)
		if err != nil || err2 != nil {
			continue
		}
		u, known := users[uint32(uid)]
		if !known {
			u = user{of: make(map[int]int), locked: make(map[int]float64), mapped: make(map[int]float64)}
			queued, _ := proc.Field([]byte(text), "SigQ") // "3/96365", the same in all processes of a user
			used, most, _ := strings.Cut(queued, "/")
			n, err := strconv.ParseFloat(used, 64)
			limit, err2 := strconv.ParseFloat(most, 64)
			if err == nil && err2 == nil && limit > 0 {
				u.signals = n / limit
			}
		}
		u.threads += float64(threads)
		u.of[pid] = threads
		if n := lockedMemory(text); n > 0 {
			u.locked[pid] = n
		}
		if n, ok := kibibytes(text, "VmSize"); ok {
			u.mapped[pid] = n
		}
		users[uint32(uid)] = u
	}
	return users
}

// manyThreads is the number of a user's threads from which the limits of its processes are read.
const manyThreads = 50

// processShare returns the share of RLIMIT_NPROC that a user's threads use, by the lowest limit of its
// processes, and the process that has most of the threads. root has no limit.
func (u user) processShare(ctx context.Context, h Host, uid uint32) (share float64, pid int) {
	if uid == 0 || u.threads < manyThreads {
		return 0, 0
	}
	for p, threads := range u.of {
		if limit, ok := softLimit(h, p, "Max processes"); ok && ctx.Err() == nil {
			share = max(share, u.threads/limit)
		}
		if threads > u.of[pid] || threads == u.of[pid] && p < pid {
			pid = p
		}
	}
	return min(1, share), pid
}

// lockedMemory returns the locked memory of a process in bytes, by its status. A process with
// CAP_IPC_LOCK may lock any amount (mlock(2)): it has none here.
func lockedMemory(status string) float64 {
	locked, ok := kibibytes(status, "VmLck")
	set, _ := proc.Field([]byte(status), "CapEff")
	capabilities, err := strconv.ParseUint(set, 16, 64)
	if !ok || err != nil || capabilities&(1<<unix.CAP_IPC_LOCK) != 0 {
		return 0
	}
	return locked
}

// kibibytes returns a field of a process's status, such as "VmLck:  2048 kB", in bytes.
func kibibytes(status, name string) (float64, bool) {
	text, _ := proc.Field([]byte(status), name)
	kib, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(text, "kB")), 64)
	return kib * 1024, err == nil
}

// memoryShares returns the share of a limit on memory that each process uses, of those that use over
// half of it.
func memoryShares(h Host, used map[int]float64, limit, name string) (found []fact.Fact) {
	for pid, n := range used {
		if most, ok := softLimit(h, pid, limit); ok && n > most*limitsShown {
			found = append(found, fact.Fact{Name: name, Value: n / most, Unit: fact.Share, Subject: processOf(h, pid)})
		}
	}
	return largest(found, shownProcesses)
}

// softLimit reads a limit of proc_pid_limits(5), the soft one. It reports false without a limit.
func softLimit(h Host, pid int, name string) (float64, bool) {
	text, err := read(string(h.Proc) + "/" + strconv.Itoa(pid) + "/limits")
	_, rest, found := strings.Cut(text, name)
	fields := strings.Fields(rest)
	if err != nil || !found || len(fields) == 0 {
		return 0, false
	}
	limit, err := strconv.ParseFloat(fields[0], 64)
	return limit, err == nil && limit > 0
}
