package probe

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"holdfast/internal/hosts/doctor/fact"
)

const (
	// useBurst is for how long processes are compared while a disk is busy, or has a deep queue.
	useBurst = 500 * time.Millisecond
	// shownMovers is the number of groups that become facts.
	shownMovers = 5
)

// diskUseProbe finds what keeps a disk busy. The groups' own figures do not tell on cgroup v1: the
// kernel counts there only while a limit is set (block/blk-throttle.c, blk_throtl_activated).
func diskUseProbe() Probe {
	return Probe{
		Name: "disk use", Sees: "what keeps a busy disk busy",
		Gives: []string{fact.DiskUse},
		Open:  counted(readDisks, useFacts),
	}
}

func useFacts(h Host, before, after diskReading, over time.Duration) ([]fact.Fact, error) {
	saturated := false
	for name, b := range after.disks {
		if a, ok := before.disks[name]; ok {
			saturated = saturated || busyShare(a, b, over) >= fact.BusyDisk || queued(a, b, over) >= fact.DeepQueue
		}
	}
	if !saturated {
		return nil, nil
	}
	begin, was := time.Now(), moved(h)
	time.Sleep(useBurst)
	return movers(h, fact.DiskUse, was, moved(h), time.Since(begin)), nil
}

// account is what a process has moved, in bytes. It includes what its children had moved that
// have ended: the kernel adds that when the process waits for them (wait_task_zombie,
// kernel/exit.c).
type account struct {
	bytes  float64
	parent int
}

// written returns how many bytes each process has written to files.
func written(h Host) map[int]account {
	return accounted(h, func(n map[string]float64) float64 { return n["write_bytes"] - n["cancelled_write_bytes"] })
}

// moved returns how many bytes each process has had disks read, and has written to files.
func moved(h Host) map[int]account {
	return accounted(h, func(n map[string]float64) float64 { return n["read_bytes"] + n["write_bytes"] })
}

// accounted returns a sum of the figures in /proc/PID/io, proc_pid_io(5), of each process.
func accounted(h Host, sum func(map[string]float64) float64) map[int]account {
	all := make(map[int]account)
	pids, _ := h.Proc.Pids() // without a list no process is known
	for _, pid := range pids {
		text, err := read(string(h.Proc) + "/" + strconv.Itoa(pid) + "/io")
		stat, failed := h.Proc.Stat(pid)
		if err == nil && failed == nil { // otherwise it has ended
			all[pid] = account{sum(numbers(text)), stat.PPid}
		}
	}
	return all
}

// inherited returns the bytes that ended processes had moved before, by the process whose account
// has received them: the nearest ancestor that still runs.
func inherited(before, after map[int]account) map[int]float64 {
	all := make(map[int]float64)
	for pid, a := range before {
		if _, runs := after[pid]; runs {
			continue
		}
		ancestor := a.parent
		for range before { // a chain of parents is no longer than that
			next, known := before[ancestor]
			if _, runs := after[ancestor]; runs || !known {
				break
			}
			ancestor = next.parent
		}
		all[ancestor] += a.bytes
	}
	return all
}

// movers returns the groups whose bytes grew most, each with its process that has most of them.
func movers(h Host, name string, before, after map[int]account, over time.Duration) []fact.Fact {
	type group struct {
		sum, most float64
		pid       int
	}
	groups, earlier := make(map[string]group), inherited(before, after)
	for pid, a := range after {
		n := a.bytes - before[pid].bytes - earlier[pid]
		path, ok := groupOf(h, pid)
		if !ok || n <= 0 {
			continue
		}
		g := groups[path]
		g.sum += n
		if n > g.most {
			g.most, g.pid = n, pid
		}
		groups[path] = g
	}
	var fs []fact.Fact
	for _, path := range slices.Sorted(maps.Keys(groups)) {
		g := groups[path]
		fs = append(fs, fact.Fact{Name: name, Value: g.sum / over.Seconds(), Unit: fact.Bytes, Subject: fact.Subject{Cgroup: path, Pid: g.pid}})
	}
	fs = largest(fs, shownMovers)
	for i := range fs {
		fs[i].Subject = processOf(h, fs[i].Subject.Pid)
	}
	return fs
}
