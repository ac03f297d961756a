package probe

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/syscalls"
	"holdfast/internal/platform/linux/tracepoint"
)

// To count each system call of the host costs each of them time, so it is done for
// two seconds, and only where the kernel is busy: what calls it very often keeps it so.
const (
	callsAfter  = 500 * time.Millisecond // of looking at how busy it is
	callsBurst  = 2 * time.Second
	callsLeast  = 100 * time.Millisecond // shorter bursts say nothing
	callsSystem = 0.2                    // CPUs that the kernel has to use, at the least
)

// callsProbe counts who calls the kernel how often, in a burst.
func callsProbe() Probe {
	return Probe{
		Name: "calls", Sees: "storms of system calls",
		Gives: []string{fact.CallsSeen, fact.Calls, fact.CallsBy},
		Start: func(_ context.Context, h Host) (Finish, error) {
			before, err := systemTime(h)
			if err != nil {
				return nil, err
			}
			// Not the look's own context, which Finish outlives.
			ctx, cancel := context.WithCancel(context.Background())
			b := &burst{host: h, before: before, begin: time.Now(), done: make(chan struct{})}
			go b.run(ctx)
			return func(context.Context, time.Duration) ([]fact.Fact, error) {
				cancel()
				<-b.done
				return b.facts()
			}, nil
		},
	}
}

// systemTime is the CPU time that the kernel has used since the boot, in seconds.
func systemTime(h Host) (float64, error) {
	cpus, err := readCPUs(h)
	return cpus["cpu"][tickSystem] / tickHz, err
}

// burst is a count of system calls for a while.
type burst struct {
	host   Host
	before float64 // CPU time of the kernel
	begin  time.Time
	done   chan struct{}

	// Valid when done is closed.
	quiet  bool // the kernel was not busy enough
	places []tracepoint.Place
	over   time.Duration
	err    error
}

var errNoBurst = errors.New("the look was too short to count system calls")

func (b *burst) run(ctx context.Context) {
	defer close(b.done)
	if !pause(ctx, callsAfter) {
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
	pause(ctx, callsBurst)
	b.over = time.Since(begin)
	b.places, b.err = readTally(t)
	if b.err == nil && b.over < callsLeast {
		b.err = errNoBurst
	}
}

// pause waits, and reports whether nobody called it off.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// shownGroups is for how many control groups the calls are facts, each with its
// shownCalls most frequent.
const (
	shownGroups = 5
	shownCalls  = 3
)

func (b *burst) facts() ([]fact.Fact, error) {
	if b.err != nil {
		return nil, b.err
	}
	fs := []fact.Fact{host(fact.CallsSeen, 1, fact.Count)}
	if b.quiet {
		return fs, nil
	}
	who := newResolver(b.host, nil)
	slices.SortFunc(b.places, func(a, b tracepoint.Place) int { return cmp.Compare(b.Count, a.Count) })
	rates, by := make(map[string]float64), make(map[string][]fact.Fact)
	for i, p := range b.places {
		v := float64(p.Count) / b.over.Seconds()
		g, _ := who.group(p.Cgroup)
		s := fact.Subject{Cgroup: Unit(g)}
		if i < shownPlaces { // the most frequent: to say who it was takes a while
			s = who.subject(p)
		}
		if s.Cgroup == "" {
			continue // it is gone
		}
		rates[s.Cgroup] += v
		if i < shownPlaces && len(by[s.Cgroup]) < shownCalls {
			s.Device = syscalls.Name(int(p.Object))
			by[s.Cgroup] = append(by[s.Cgroup], fact.Fact{Name: fact.CallsBy, Value: v, Unit: fact.PerSecond, Subject: s})
		}
	}
	var groups []fact.Fact
	for g, v := range rates {
		groups = append(groups, fact.Fact{Name: fact.Calls, Value: v, Unit: fact.PerSecond, Subject: fact.Subject{Cgroup: g}})
	}
	slices.SortFunc(groups, func(a, b fact.Fact) int { return cmp.Compare(b.Value, a.Value) })
	for _, g := range groups[:min(len(groups), shownGroups)] {
		fs = append(append(fs, g), by[g.Subject.Cgroup]...)
	}
	for i := range fs {
		fs[i].Over = b.over.Seconds()
	}
	return fs, nil
}
