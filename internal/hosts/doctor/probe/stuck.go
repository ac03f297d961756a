package probe

import (
	"cmp"
	"context"
	"maps"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
)

// stuckProbe finds tasks that wait in uninterruptible sleep, state D of proc_pid_stat(5), for the
// whole observation: a thread that has not run since cannot have ended one wait and begun another.
// It reads the state of all tasks, and so finds zombies, too.
func stuckProbe() Probe {
	return Probe{
		Name: "stuck", Sees: "tasks that wait in the kernel and cannot be interrupted or for the lock of a stopped process, and zombies",
		Gives: []string{fact.StuckSeen, fact.Stuck, fact.Zombies, fact.LockHeld, fact.SocketWaits, fact.PipeWaits},
		Open: func(ctx context.Context, h Host, now time.Time) (Series, error) {
			r := &stuckReader{host: h, zombies: make(map[int]zombie), holders: stoppedHolders(h), waits: make(map[thread]string)}
			return r, r.scan(ctx, now)
		},
	}
}

// standingStuckProbe is stuckProbe for an agent. It reads the threads again and again, but only while
// more tasks count for the load average than run, and for a small share of the time.
func standingStuckProbe() Probe {
	p := stuckProbe()
	p.Rare = true
	p.Gives = []string{fact.StuckSeen, fact.Stuck}
	p.Open = func(ctx context.Context, h Host, now time.Time) (Series, error) {
		return &stuckReader{host: h, standing: true}, nil
	}
	return p
}

// loadedFrom is the load average, above the tasks that run, from which a task may be stuck: one
// adds 0.63 in the first minute (kernel/sched/loadavg.c).
const loadedFrom = 0.5

// loaded reports whether the load average is higher than the number of tasks that run at the
// moment, this one left out: "0.20 0.18 0.12 1/80 11206" of proc_loadavg(5).
func loaded(h Host) bool {
	text, err := read(string(h.Proc) + "/loadavg")
	f := strings.Fields(text)
	if err != nil || len(f) < 4 {
		return true // the threads tell
	}
	load, err := strconv.ParseFloat(f[0], 64)
	running, _, _ := strings.Cut(f[3], "/")
	n, err2 := strconv.ParseFloat(running, 64)
	return err != nil || err2 != nil || load-(n-1) >= loadedFrom
}

// asleep is a thread in state D.
type asleep struct {
	start uint64 // of the thread, in ticks
	comm  string
	ran   string // schedstat: its third figure counts how often the thread has run
	since time.Time
}

// stuckReader is the Series of both probes.
type stuckReader struct {
	host   Host
	asleep map[thread]asleep
	// zombies are those of the scan, by pid; nil if they are not looked for.
	zombies map[int]zombie
	holders map[int]float64   // stopped holders of file locks at the first reading
	waits   map[thread]string // threads that waited for a reader at the scan, with how often they had run
	// standing means that there are many readings, each of which looks for more. The next scan
	// is not before due.
	standing bool
	due      time.Time
	scanned  bool // at the reading before
}

// scanShare is the share of the time that an agent spends on scans.
const scanShare = 0.0005

func (r *stuckReader) Close() error { return nil }

func (r *stuckReader) Read(ctx context.Context, now time.Time) ([]fact.Fact, error) {
	stuck := make(map[thread]asleep)
	for t, before := range r.asleep {
		if after, ok := sleeping(r.host, t); ok && after.start == before.start && after.ran == before.ran {
			stuck[t] = before
		}
	}
	facts := append(stuckFacts(ctx, r.host, stuck, now), zombieFacts(ctx, r.host, r.zombies, now)...)
	if len(r.holders) > 0 {
		facts = append(facts, holderFacts(r.host, r.holders, stoppedHolders(r.host))...)
	}
	facts = append(facts, readerWaits(r.host, r.waits)...)
	r.asleep = stuck
	before := r.scanned
	r.scanned = r.standing && !now.Before(r.due) && loaded(r.host)
	if !r.scanned {
		return facts, nil
	}
	begin := time.Now()
	err := r.scan(ctx, now)
	r.due = now.Add(time.Duration(float64(time.Since(begin)) / scanShare))
	if !before && len(stuck) == 0 && len(r.asleep) > 0 { // only the next reading tells whether they are stuck
		return nil, err
	}
	return facts, err
}

// scan adds the threads that are in state D.
func (r *stuckReader) scan(ctx context.Context, now time.Time) error {
	found := make(map[thread]asleep)
	pids, err := r.host.Proc.Pids()
	if err != nil {
		return err
	}
	reads := 0
	for _, pid := range pids {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if pid == os.Getpid() {
			continue
		}
		tids, err := os.ReadDir(string(r.host.Proc) + "/" + strconv.Itoa(pid) + "/task")
		if err != nil {
			continue // the process has ended
		}
		for _, d := range tids {
			tid, err := strconv.Atoi(d.Name())
			if reads++; err != nil || reads > maxThreads {
				continue
			}
			t := thread{pid, tid}
			st, ok := statOf(r.host, t)
			if a, ok2 := asleepOf(r.host, t, st); ok && ok2 {
				a.since = now
				found[t] = a
			}
			if ok && !r.standing && st.State == 'S' && waitsForReader(r.host, t) != "" {
				r.waits[t], _ = read(t.dir(r.host) + "/schedstat") // "" if it has ended
			}
			if ok && r.zombies != nil && len(tids) == 1 && st.State == 'Z' {
				r.zombies[pid] = zombie{parent: st.PPid, start: st.Start, since: now}
			}
		}
	}
	maps.Copy(found, r.asleep) // they have waited for longer than since this scan
	r.asleep = found
	return nil
}

func (t thread) dir(h Host) string {
	return string(h.Proc) + "/" + strconv.Itoa(t.pid) + "/task/" + strconv.Itoa(t.tid)
}

// statOf reads a thread's stat, false if it has ended.
func statOf(h Host, t thread) (proc.Stat, bool) {
	text, err := read(t.dir(h) + "/stat")
	if err != nil {
		return proc.Stat{}, false
	}
	s, err := proc.ParseStat([]byte(text))
	return s, err == nil
}

// sleeping reads a thread, and reports false if it is not in state D.
func sleeping(h Host, t thread) (asleep, bool) {
	s, ok := statOf(h, t)
	if !ok {
		return asleep{}, false
	}
	return asleepOf(h, t, s)
}

// asleepOf reads how often a thread in state D has run, and reports false for others. Threads of the
// kernel are left out: no container has them, drivers let some wait in state D for ever, and what a
// stuck one holds up are other tasks.
func asleepOf(h Host, t thread, s proc.Stat) (asleep, bool) {
	if s.State != 'D' || s.Kernel() {
		return asleep{}, false
	}
	ran, err := read(t.dir(h) + "/schedstat")
	return asleep{start: s.Start, comm: s.Comm, ran: ran}, err == nil
}

// waitsForReader returns the fact about a thread that waits for room in a queue, which its reader has
// to make: of a Unix socket (unix_dgram_sendmsg, net/unix/af_unix.c) or of a pipe (fs/pipe.c; the second
// name is that of Linux 6.15). It returns "" for others.
func waitsForReader(h Host, t thread) string {
	switch function, _ := read(t.dir(h) + "/wchan"); function { // "" if it has ended
	case "unix_wait_for_peer":
		return fact.SocketWaits
	case "pipe_write", "anon_pipe_write":
		return fact.PipeWaits
	}
	return ""
}

// readerWaits counts the threads that wait so again, by their group. A pipe with a slow reader is often
// full, so its writers count only if they have not run since.
func readerWaits(h Host, before map[thread]string) []fact.Fact {
	type place struct{ name, group string }
	waits := make(map[place]fact.Fact)
	for _, t := range slices.SortedFunc(maps.Keys(before), thread.compare) {
		name := waitsForReader(h, t)
		ran, _ := read(t.dir(h) + "/schedstat")
		if name == "" || name == fact.PipeWaits && ran != before[t] {
			continue
		}
		s := processOf(h, t.pid)
		p := place{name, s.Cgroup}
		f, known := waits[p]
		if !known {
			f = fact.Fact{Name: name, Unit: fact.Count, Subject: s}
		}
		f.Value++
		waits[p] = f
	}
	return largest(slices.Collect(maps.Values(waits)), shownProcesses)
}

// maxStuck bounds the stuck threads of which the place is read.
const maxStuck = 2000

// stuckFacts counts stuck threads by the group and the place in the kernel at which they wait.
func stuckFacts(ctx context.Context, h Host, stuck map[thread]asleep, now time.Time) []fact.Fact {
	type place struct{ group, function string }
	places := make(map[place]fact.Fact)
	excused := make(map[int]bool)
	n := 0
	threads := slices.Collect(maps.Keys(stuck))
	sort.Slice(threads, func(i, j int) bool { return threads[i].compare(threads[j]) < 0 })
	for _, t := range threads {
		if n++; n > maxStuck || ctx.Err() != nil {
			break
		}
		if _, known := excused[t.pid]; !known {
			excused[t.pid] = frozen(h, t.pid) || dumping(h, t.pid)
		}
		if excused[t.pid] {
			n--
			continue
		}
		group, _ := groupOf(h, t.pid)
		function, _ := read(t.dir(h) + "/wchan") // "" if it is gone
		p := place{group, function}
		f, ok := places[p]
		if !ok {
			f = fact.Fact{Name: fact.Stuck, Unit: fact.Count, Subject: fact.Subject{Cgroup: group, Pid: t.pid, Command: stuck[t].comm, Kernel: h.Proc.KernelPath(t.pid, t.tid)}}
			wait := fact.WaitOf(f.Subject.Kernel)
			if wait.Process {
				n--
				continue
			}
			f.Subject.Device = waitedFor(h, t, wait)
		}
		f.Value++
		f.Over = max(f.Over, now.Sub(stuck[t].since).Seconds())
		places[p] = f
	}
	fs := make([]fact.Fact, 0, len(places))
	for _, f := range places {
		fs = append(fs, f)
	}
	return append(largest(fs, shownProcesses), host(fact.StuckSeen, float64(n), fact.Count))
}

func (t thread) compare(u thread) int {
	return cmp.Or(cmp.Compare(t.pid, u.pid), cmp.Compare(t.tid, u.tid))
}

// frozen reports whether a process is in a group that a freezer of cgroup v1 stops: from Linux 6.1
// on, such a task is shown in state D wherever it sleeps (TASK_FROZEN, kernel/freezer.c). A group
// that is about to freeze counts, too, and so does one whose state cannot be read.
func frozen(h Host, pid int) bool {
	members, err := h.Groups.Members(h.Proc, pid)
	groups, err2 := h.Groups.Of(h.Proc, pid)
	if err != nil || err2 != nil {
		return true // it has ended
	}
	freezes := func(c []string) bool { return slices.Contains(c, "freezer") }
	if !slices.ContainsFunc(members, func(m cgroup.Member) bool { return freezes(m.Controllers) && m.Path != "/" }) {
		return false
	}
	i := slices.IndexFunc(groups, func(g cgroup.Group) bool { return !g.V2 && freezes(g.Controllers) })
	if i < 0 {
		return true
	}
	text, err := read(groups[i].FreezerFile())
	return err != nil || strings.TrimSpace(text) != "THAWED"
}

// dumping reports whether the kernel writes a core dump of a process; its other threads wait for
// that. CoreDumping of proc_pid_status(5), Linux 4.15.
func dumping(h Host, pid int) bool {
	return status(string(h.Proc)+"/"+strconv.Itoa(pid), "CoreDumping") == 1
}
