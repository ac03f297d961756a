package probe

import (
	"context"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/tasks"
)

// The samples of threads that wait for an answer. After fanotifyLeast of them without such a thread
// no more are taken once they took fanotifyBudget: a host of 50 containers has some 1,000 threads, at
// 4 µs each.
const (
	fanotifySamples = 20
	fanotifyLeast   = 8
	fanotifyEvery   = 80 * time.Millisecond
	fanotifyBudget  = 20 * time.Millisecond
	// A scanner that answers at once does so in some 50 µs. fanotifyHeld is the time after which a
	// thread is looked at again: one that has not run since is held up.
	fanotifyHeld = time.Millisecond
)

// Bits of the flags and marks of a fanotify group (include/uapi/linux/fanotify.h): the classes that
// may ask for permission, and the events for which the kernel waits for an answer.
const (
	fanotifyClasses = 0x4 | 0x8
	fanotifyAsks    = 0x10000 | 0x20000 | 0x40000 | 0x100000
)

// asks reports whether a process's file is a fanotify group that is asked for permission, by the
// lines of its fdinfo: "fanotify flags:5 event-flags:88000", "fanotify mnt_id:1d mflags:0 mask:10000
// ignored_mask:0" of proc_pid_fdinfo(5).
func asks(fdinfo string) bool {
	class, asked := false, false
	for line := range strings.Lines(fdinfo) {
		for _, word := range strings.Fields(line) {
			key, value, _ := strings.Cut(word, ":")
			v, err := strconv.ParseUint(value, 16, 64)
			class = class || err == nil && key == "flags" && v&fanotifyClasses != 0
			asked = asked || err == nil && key == "mask" && v&fanotifyAsks != 0
		}
	}
	return class && asked
}

// fanotifyReader samples threads that wait for the answer of a scanner.
type fanotifyReader struct {
	host  Host
	left  map[int]bool         // processes, whether they are left out: threads of the kernel, and the doctor
	found map[string]fact.Fact // by group: in how many samples
	held  float64              // samples with at least one
	n     float64              // samples
	seen  bool                 // the place at which a thread sleeps can be read
}

// fanotifyWaits returns the number of scanners, and the share of samples in which they held up
// threads. Without the right to see where threads sleep, or in a kernel without names of functions, it
// returns nothing.
func fanotifyWaits(ctx context.Context, h Host, scanners []int) []fact.Fact {
	number := host(fact.Scanners, float64(len(scanners)), fact.Count)
	if len(scanners) == 0 {
		return []fact.Fact{number}
	}
	r := fanotifyReader{host: h, left: map[int]bool{os.Getpid(): true}, found: make(map[string]fact.Fact)}
	before := make(map[int]scanner)
	for _, pid := range scanners {
		before[pid] = scannerOf(h, pid)
	}
	begin := time.Now()
	spent := time.Duration(0)
	for r.n < fanotifySamples && (r.n < fanotifyLeast || r.held > 0 || spent < fanotifyBudget) {
		from := time.Now()
		r.add(r.sample(ctx))
		spent += time.Since(from)
		if tasks.Sleep(ctx, fanotifyEvery) != nil {
			return nil
		}
	}
	if !r.seen {
		return nil
	}
	fs := []fact.Fact{number, host(fact.FanotifyHeld, r.held/r.n, fact.Share)}
	var by []fact.Fact
	over := time.Since(begin).Seconds()
	for _, pid := range scanners {
		now, subject := scannerOf(h, pid), processOf(h, pid)
		by = append(by, fact.Fact{Name: fact.FanotifyBy, Value: max(0, now.writes-before[pid].writes) / over, Unit: fact.PerSecond, Subject: subject}) // it may have ended
		longest := 0.0
		for tid, waited := range now.waited {
			if was, ok := before[pid].waited[tid]; ok {
				longest = max(longest, (waited-was)/1e9)
			}
		}
		fs = append(fs, fact.Fact{Name: fact.FanotifyCPUWait, Value: min(1, longest/over), Unit: fact.Share, Subject: subject})
	}
	victims := make([]fact.Fact, 0, len(r.found))
	for _, f := range r.found {
		f.Value /= r.n
		victims = append(victims, f)
	}
	sort.Slice(victims, func(i, j int) bool { return victims[i].Subject.Cgroup < victims[j].Subject.Cgroup })
	return slices.Concat(fs, largest(by, shownProcesses), largest(victims, shownProcesses))
}

// scanner has counters of a process that is asked.
type scanner struct {
	writes float64            // of which each answer is one: syscw of proc_pid_io(5)
	waited map[string]float64 // ns for which each thread waited for a CPU: schedstat
}

func scannerOf(h Host, pid int) scanner {
	dir := string(h.Proc) + "/" + strconv.Itoa(pid)
	text, _ := read(dir + "/io") // none if it has ended
	s := scanner{writes: numbers(text)["syscw"], waited: make(map[string]float64)}
	tids, _ := os.ReadDir(dir + "/task")
	for _, d := range tids {
		text, _ := read(dir + "/task/" + d.Name() + "/schedstat") // a kernel may have none
		if v, err := floats(text); err == nil && len(v) > 1 {
			s.waited[d.Name()] = v[1]
		}
	}
	return s
}

// asking is a thread that waits for an answer.
type asking struct {
	thread
	ran string // schedstat: its third figure counts how often the thread has run
	at  time.Time
}

// held reports whether the thread still waits for the same answer.
func (a asking) held(h Host) bool {
	ran, err := read(a.dir(h) + "/schedstat")
	return err == nil && ran == a.ran && fact.AsksPermission(a.where(h))
}

// sample returns the threads that wait for an answer, and still do after fanotifyHeld. It looks at
// a thread again as soon as that is over, while it reads the others.
func (r *fanotifyReader) sample(ctx context.Context) (held []thread) {
	var waiting []asking
	settle := func(all bool) {
		for len(waiting) > 0 && (all || time.Since(waiting[0].at) >= fanotifyHeld) {
			a := waiting[0]
			waiting = waiting[1:]
			time.Sleep(fanotifyHeld - time.Since(a.at))
			if a.held(r.host) {
				held = append(held, a.thread)
			}
		}
	}
	reads := 0
	pids, _ := r.host.Proc.Pids() // without a list none is known
	for _, pid := range pids {
		if _, known := r.left[pid]; !known {
			st, err := r.host.Proc.Stat(pid)
			r.left[pid] = err != nil || st.Kernel()
		}
		if r.left[pid] || ctx.Err() != nil {
			continue
		}
		tids, _ := os.ReadDir(string(r.host.Proc) + "/" + strconv.Itoa(pid) + "/task") // none if it has ended
		for _, d := range tids {
			tid, err := strconv.Atoi(d.Name())
			if reads++; err != nil || reads > maxThreads {
				continue
			}
			t := thread{pid, tid}
			where := t.where(r.host)
			r.seen = r.seen || where != "" && where != "0"
			if fact.AsksPermission(where) {
				ran, _ := read(t.dir(r.host) + "/schedstat") // "" if it has ended
				waiting = append(waiting, asking{t, ran, time.Now()})
			}
			settle(false)
		}
	}
	settle(true)
	return held
}

// where returns the function of the kernel in which a thread sleeps, proc_pid_wchan(5): "0" if it is
// unknown or the thread runs, "" if it has ended.
func (t thread) where(h Host) string {
	function, _ := read(t.dir(h) + "/wchan")
	return function
}

// add counts the threads of a sample by their groups.
func (r *fanotifyReader) add(held []thread) {
	r.n++
	if len(held) > 0 {
		r.held++
	}
	seen := make(map[string]bool)
	for _, t := range held {
		s := processOf(r.host, t.pid)
		if seen[s.Cgroup] {
			continue
		}
		seen[s.Cgroup] = true
		f, ok := r.found[s.Cgroup]
		if !ok {
			f = fact.Fact{Name: fact.FanotifyWait, Unit: fact.Share, Subject: s}
		}
		f.Value++
		r.found[s.Cgroup] = f
	}
}
