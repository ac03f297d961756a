package probe

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
)

// tasksProbe reads how long the threads of each container were runnable without a CPU:
// schedstat of each thread, Documentation/scheduler/sched-stats.rst.
func tasksProbe() Probe {
	return Probe{
		Name: "tasks", Sees: "waits for a CPU by container, and which processes use the CPUs",
		Gives: []string{fact.TasksSeen, fact.GroupWait, fact.GroupLongest, fact.GroupLasting, fact.GroupYoungWait, fact.ProcessCPU, fact.ProcessBound, fact.Tracer, fact.Traced},
		Open:  counted(readTasks, taskFacts),
	}
}

// thread identifies a thread by id and start time, because the kernel reuses ids.
type thread struct {
	pid, tid int
}

// schedule holds the CPU time and the waiting time of a thread, in nanoseconds, and how often it
// began to run.
type schedule struct {
	ran, waited, runs float64
}

// maxThreads bounds the number of threads that are read.
const maxThreads = 200_000

func readTasks(ctx context.Context, h Host) (map[thread]schedule, error) {
	pids, err := h.Proc.Pids()
	if err != nil {
		return nil, err
	}
	threads := make(map[thread]schedule, 2*len(pids))
	var last error
	for _, pid := range pids {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if pid == os.Getpid() { // the doctor itself is not a victim
			continue
		}
		dir := string(h.Proc) + "/" + strconv.Itoa(pid) + "/task/"
		tids, err := os.ReadDir(dir)
		if err != nil {
			continue // the process has ended
		}
		for _, d := range tids {
			text, err := read(dir + d.Name() + "/schedstat")
			if err != nil {
				last = err
				continue
			}
			v, err := floats(text)
			tid, err2 := strconv.Atoi(d.Name())
			if err == nil && err2 == nil && len(v) >= 3 && len(threads) < maxThreads {
				threads[thread{pid, tid}] = schedule{v[0], v[1], v[2]}
			}
		}
	}
	if len(threads) == 0 { // a kernel without SCHED_INFO
		return nil, last
	}
	return threads, nil
}

// shownProcesses is the number of processes whose CPU time becomes a fact.
const shownProcesses = 20

func taskFacts(h Host, before, after map[thread]schedule, over time.Duration) ([]fact.Fact, error) {
	grown := make(map[thread]schedule)
	perProcess := make(map[int]schedule)
	longest := make(map[int]float64) // longest wait of a thread, by process
	worst := make(map[int]thread)    // that thread
	young := make(map[int]schedule)  // threads that began during the examination, by process
	for t, b := range after {
		a, ok := before[t]
		if !ok {
			y := young[t.pid]
			young[t.pid] = schedule{ran: y.ran + b.ran, waited: y.waited + b.waited}
		}
		if !ok || b.ran < a.ran || b.waited < a.waited {
			continue
		}
		if d := (schedule{b.ran - a.ran, b.waited - a.waited, b.runs - a.runs}); d.ran > 0 || d.waited > 0 {
			grown[t] = d
			p := perProcess[t.pid]
			perProcess[t.pid] = schedule{ran: p.ran + d.ran, waited: p.waited + d.waited}
			if d.waited > longest[t.pid] {
				longest[t.pid], worst[t.pid] = d.waited, t
			}
		}
	}
	type waits struct {
		all, longest, ran float64
		young             schedule
	}
	perGroup := make(map[string]waits)
	var processes []fact.Fact
	for pid, d := range perProcess {
		group, ok := groupOf(h, pid)
		if !ok {
			continue
		}
		g := perGroup[group]
		perGroup[group] = waits{all: g.all + d.waited, longest: max(g.longest, longest[pid]), ran: g.ran + d.ran}
		processes = append(processes, fact.Fact{Name: fact.ProcessCPU, Value: d.ran / float64(over), Unit: fact.Share,
			Subject: fact.Subject{Cgroup: group, Pid: pid}})
	}
	for pid, y := range young {
		if group, ok := groupOf(h, pid); ok {
			g := perGroup[group]
			g.young = schedule{ran: g.young.ran + y.ran, waited: g.young.waited + y.waited}
			perGroup[group] = g
		}
	}
	processes = largest(processes, shownProcesses)
	for i := range processes {
		if s, err := h.Proc.Stat(processes[i].Subject.Pid); err == nil {
			processes[i].Subject.Command = s.Comm
		}
	}
	fs := append(append(processes, boundFacts(h, worst, longest, float64(over))...), host(fact.TasksSeen, float64(len(after)), fact.Count))
	for group, w := range perGroup { // reading all threads takes a while, so a thread may be observed slightly longer or shorter than over
		s := fact.Subject{Cgroup: group}
		fs = append(fs, fact.Fact{Name: fact.GroupWait, Value: w.all / float64(over), Unit: fact.Share, Subject: s},
			fact.Fact{Name: fact.GroupLongest, Value: min(1, w.longest/float64(over)), Unit: fact.Share, Subject: s},
			fact.Fact{Name: fact.GroupLasting, Value: w.ran / float64(over), Unit: fact.Share, Subject: s})
		if w.young.ran > 0 {
			fs = append(fs, fact.Fact{Name: fact.GroupYoungWait, Value: w.young.waited / w.young.ran, Unit: fact.Share, Subject: s})
		}
	}
	return append(fs, traced(h, grown, over)...), nil
}

// processOf returns a process as a subject, with its group and command if they are known.
func processOf(h Host, pid int) fact.Subject {
	s := fact.Subject{Pid: pid}
	s.Cgroup, _ = groupOf(h, pid)
	if st, err := h.Proc.Stat(pid); err == nil {
		s.Command = st.Comm
	}
	return s
}

// groupOf returns the group that a process's activity is attributed to.
func groupOf(h Host, pid int) (string, bool) {
	members, err := h.Groups.Members(h.Proc, pid)
	if err != nil {
		return "", false
	}
	return unitOf(members), true
}

// unitOf chooses one of a process's paths in the hierarchies: that of a container, or
// else the longest. In the hierarchy of an unrelated controller a process is at the root.
func unitOf(members []cgroup.Member) string {
	best := "/"
	for _, m := range members {
		if fact.ContainerID(m.Path) != "" {
			return fact.UnitGroup(m.Path)
		}
		if len(m.Path) > len(best) && !strings.HasPrefix(m.Path, "/..") {
			best = m.Path
		}
	}
	return best
}

// ownPids reports whether the procfs shows all processes of the host: the inode
// of the first pid namespace is fixed (PROC_PID_INIT_INO, include/linux/proc_ns.h).
func ownPids(p proc.FS) bool {
	to, err := os.Readlink(string(p) + "/self/ns/pid")
	return err == nil && to == "pid:[4026531836]"
}
