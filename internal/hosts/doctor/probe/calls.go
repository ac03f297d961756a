package probe

import (
	"context"
	"errors"
	"sort"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/syscalls"
	"holdfast/internal/platform/linux/tracepoint"
	"holdfast/internal/platform/tasks"
)

// Counting every system call of the host slows down each call. It is therefore done for
// two seconds, and only if the kernel is busy; a process that causes a storm keeps it
// busy.
const (
	callsAfter  = 500 * time.Millisecond // after measuring for this long how busy the kernel is
	callsBurst  = 2 * time.Second
	callsLeast  = 100 * time.Millisecond // shorter bursts are not significant
	callsSystem = 0.2                    // least CPU use of the kernel for a burst, in CPUs
)

// callsProbe counts system calls by process for a short time.
func callsProbe() Probe {
	return Probe{
		Name: "calls", Sees: "storms of system calls",
		Gives: []string{fact.CallsSeen, fact.Calls, fact.CallsBy, fact.CallsReach},
		Open: func(_ context.Context, h Host, now time.Time) (Series, error) {
			before, err := systemTime(h)
			if err != nil {
				return nil, err
			}
			// The context is not that of Open, because Read uses it later.
			ctx, cancel := context.WithCancel(context.Background())
			b := &burst{host: h, before: before, begin: now, cancel: cancel, done: make(chan struct{})}
			go b.run(ctx)
			return b, nil
		},
	}
}

// systemTime returns the CPU time of the kernel since boot, in seconds.
func systemTime(h Host) (float64, error) {
	cpus, err := readTicks(h)
	return cpus["cpu"][tickSystem] / tickHz, err
}

// burst is a Series that counts system calls for a short time, once.
type burst struct {
	host   Host
	before float64 // CPU time of the kernel
	begin  time.Time
	cancel context.CancelFunc
	done   chan struct{}

	// Valid when done is closed.
	quiet  bool // the kernel was not busy enough
	places []tracepoint.Place
	over   time.Duration
	err    error
}

var errNoBurst = errors.New("the examination was too short to count system calls")

func (b *burst) run(ctx context.Context) {
	defer close(b.done)
	if tasks.Sleep(ctx, callsAfter) != nil {
		b.err = errNoBurst
		return
	}
	now, err := systemTime(b.host)
	if b.err = err; err != nil {
		return
	}
	if now-b.before < callsSystem*time.Since(b.begin).Seconds() {
		b.quiet = true
		return
	}
	t, err := tracepoint.CountCalls()
	if err != nil {
		b.err = traceError(err)
		return
	}
	begin := time.Now()
	_ = tasks.Sleep(ctx, callsBurst)
	b.over = time.Since(begin)
	b.places, b.err = t.Read()
	b.err = errors.Join(b.err, t.Close())
	if b.err == nil && b.over < callsLeast {
		b.err = errNoBurst
	}
}

// shownGroups is the number of control groups whose calls become facts, each with its
// shownCalls most frequent calls.
const (
	shownGroups = 5
	shownCalls  = 3
)

// reaching is a control group and a call that affects others.
type reaching struct{ group, call string }

func reaches(call string) bool {
	_, ok := fact.ReachOf(call)
	return ok
}

func (b *burst) Close() error {
	b.cancel()
	<-b.done
	return nil
}

func (b *burst) Read(context.Context, time.Time) ([]fact.Fact, error) {
	b.cancel()
	<-b.done
	if b.err != nil {
		return nil, b.err
	}
	fs := []fact.Fact{host(fact.CallsSeen, 1, fact.Count)}
	if b.quiet {
		return fs, nil
	}
	names := newResolver(b.host, nil)
	sort.Slice(b.places, func(i, j int) bool { return b.places[j].Count < b.places[i].Count })
	rates, by, reach := make(map[string]float64), make(map[string][]fact.Fact), make(map[reaching]float64)
	for i, p := range b.places {
		v := float64(p.Count) / b.over.Seconds()
		g, _ := names.group(p.Cgroup)
		s := fact.Subject{Cgroup: fact.UnitGroup(g)}
		if i < shownPlaces { // only for the most frequent calls, because naming the process takes a while
			s = names.subject(p)
		}
		if s.Cgroup == "" {
			continue // the process has ended
		}
		rates[s.Cgroup] += v
		if call := syscalls.Name(int(p.Object)); reaches(call) {
			reach[reaching{s.Cgroup, call}] += v
		}
		if i < shownPlaces && len(by[s.Cgroup]) < shownCalls {
			s.Device = syscalls.Name(int(p.Object))
			by[s.Cgroup] = append(by[s.Cgroup], fact.Fact{Name: fact.CallsBy, Value: v, Unit: fact.PerSecond, Subject: s})
		}
	}
	var groups []fact.Fact
	for g, v := range rates {
		groups = append(groups, fact.Fact{Name: fact.Calls, Value: v, Unit: fact.PerSecond, Subject: fact.Subject{Cgroup: g}})
	}
	for _, g := range largest(groups, shownGroups) {
		fs = append(append(fs, g), by[g.Subject.Cgroup]...)
	}
	for r, v := range reach {
		if limit, _ := fact.ReachOf(r.call); v > limit.Rate/10 { // others are not worth a fact
			fs = append(fs, fact.Fact{Name: fact.CallsReach, Value: v, Unit: fact.PerSecond, Subject: fact.Subject{Cgroup: r.group, Device: r.call}})
		}
	}
	for i := range fs {
		fs[i].Over = b.over.Seconds()
	}
	return fs, nil
}
