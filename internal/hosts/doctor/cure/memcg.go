package cure

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/tasks"
)

const (
	// least is the least amount that dying groups must hold. Less is within the error of
	// the kernel's counting (64 pages for each CPU).
	least = 256 << 10
	// fewDying is the number of dying groups below which no group is chosen: half of the
	// doctor's threshold.
	fewDying = 1000
	// firstRound is the size of the first squeeze. It shows whether pages of dying groups
	// are freed before those of living ones.
	firstRound = 8 << 20
	// maxRounds bounds the squeezes. Each ends early, because the kernel's own memory of
	// dying groups that is freed meanwhile counts, too.
	maxRounds = 24
	// settle is the time within which the kernel releases groups without pages.
	settle = 300 * time.Millisecond
	// addedUp is the time within which the kernel's counts appear in a group's figures
	// (FLUSH_TIME in mm/memcontrol.c is 2 s).
	addedUp = 2200 * time.Millisecond
	// maxLoss is the share of the page cache of living groups that may be lost.
	maxLoss = 0.02
	// lossEvery is the interval of this check.
	lossEvery = 5 * time.Millisecond
	// noProgress is the share of the remaining pages that a squeeze must free. Two
	// squeezes below it end the cure.
	noProgress = 0.05
)

// Memcg frees dying memory cgroups by reclaiming a little memory at their parent: the
// kernel takes the pages of dying groups first. The group is a path, or "" for the one
// below which dying groups hold most. On v1 the parent's limit is lowered below its usage
// and restored at once; on v2 memory.reclaim does the same. docs/doctor-cures.md has
// measurements.
func Memcg(group string) Cure {
	return Cure{Name: "memcg", prepare: func(ctx context.Context, e Env, o Options) (prepared, error) {
		l, notes, err := chooseCounted(ctx, e.Host, group)
		if err != nil {
			return prepared{}, err
		}
		s := squeeze{env: e, options: o, group: l.group, bytes: o.Bytes}
		a := prepared{target: l.group.Path, notes: notes, lock: l.group.Path}
		a.plan = s.plan(l)
		a.root = "squeezing a control group"
		if !l.worth() {
			a.plan.Does, a.plan.Bytes = nil, 0
			if l.locked >= least {
				a.notes = append(a.notes, fmt.Sprintf("it cannot free %s that a process has locked", size(l.locked)))
			}
			a.notes = append(a.notes, fmt.Sprintf("dying groups hold only %s of other pages there, which is too little for a cure", size(l.pages-l.locked)))
			a.notes = append(a.notes, holders(ctx, e.Host)...)
			return a, nil
		}
		a.measure = func(ctx context.Context) ([]Measure, error) { return measureLeft(ctx, e.Host, l.group) }
		a.do = s.do
		return a, nil
	}}
}

// chooseCounted is chooseLeft after the kernel has added up its counts of each CPU and
// each group. Before that, dying groups may seem to hold nothing.
func chooseCounted(ctx context.Context, h probe.Host, group string) (left, []string, error) {
	l, notes, err := chooseLeft(ctx, h, group)
	if (err == nil && l.worth()) || (err != nil && !errors.Is(err, ErrNothing)) {
		return l, notes, err
	}
	if tasks.Sleep(ctx, addedUp) != nil {
		return l, notes, err
	}
	return chooseLeft(ctx, h, group)
}

// chooseLeft returns the requested group, or the one below which dying groups hold most.
func chooseLeft(ctx context.Context, h probe.Host, group string) (left, []string, error) {
	if group != "" {
		g, err := findGroup(h, group)
		if err != nil {
			return left{}, nil, err
		}
		l, err := readLeft(g)
		if err == nil && g.IsRoot() && !g.V2 {
			err = errors.New("the root of cgroup v1 has no limit that could be lowered: name one below it")
		}
		return l, nil, err
	}
	m, ok := h.Groups.Memory()
	if !ok {
		return left{}, nil, errNoMemory
	}
	best, root, err := mostLeft(m)
	if err != nil {
		return best, nil, err
	}
	var notes []string
	if root.pages > max(best.pages, 16<<20) {
		notes = append(notes, fmt.Sprintf("%s of the page cache is of groups that were directly below the root, or of the root itself: on cgroup v1 there is no gentle way to free these", size(root.pages)))
	}
	if best.pages == 0 {
		return best, notes, fmt.Errorf("%w: no control group has pages of dying groups below it", ErrNothing)
	}
	// A small number of dying groups is normal, and their pages may be useful.
	if n, ok := settledDying(ctx, h); ok && n < fewDying {
		return best, notes, holdfast.WithHint(fmt.Errorf("%w: only %.0f memory cgroups are dying on this host", ErrNothing, n), "--cgroup squeezes a group in any case")
	}
	return best, notes, nil
}

func (s *squeeze) plan(l left) Plan {
	n := min(s.bytes, l.pages-l.locked)
	p := Plan{
		Bytes: n,
		Gain:  fmt.Sprintf("frees the dying groups below %s: %s of page cache, and about 47 KiB of kernel memory for each group; reclaims there become fast again", l.group.Path, size(l.pages)),
		Does:  []string{"write dirty pages to the disks (sync), because they cannot be reclaimed"},
	}
	if l.group.V2 {
		p.Does = append(p.Does, fmt.Sprintf("reclaim %s at %s (memory.reclaim), in rounds, the first of %s", size(n), l.group.Dir(), size(min(n, firstRound))))
		p.Risk = fmt.Sprintf("loses some page cache of living groups; stops when over %.0f %% of it is lost, or when they stall", 100*maxLoss)
	} else {
		p.Does = append(p.Does, fmt.Sprintf("lower the memory limit of %s below its usage by %s and restore it at once, in rounds, the first by %s; a guardian protects each round", l.group.Dir(), size(n), size(min(n, firstRound))))
		p.Risk = fmt.Sprintf("loses some page cache of living groups (stops when over %.0f %% of it is lost, or when they stall); allocations during the microseconds of the low limit wait", 100*maxLoss)
	}
	if l.locked > 0 {
		p.Does = append(p.Does, fmt.Sprintf("leave %s that a process has locked: only that process can free them", size(l.locked)))
	}
	return p
}

// squeeze is a run of the cure.
type squeeze struct {
	env     Env
	options Options
	group   cgroup.Group
	bytes   int64 // bytes that may still be requested
	live    int64 // page cache of living groups before the cure
}

func (s *squeeze) do(ctx context.Context) (result, error) {
	var r result
	if err := syncAll(ctx); err != nil {
		return r, err
	}
	now, err := readLeft(s.group)
	if err != nil {
		return r, err
	}
	s.live = now.live
	watch := newWatch(ctx, s.env.Host, s.group)
	idle := 0
	next := int64(firstRound)
	for round := 0; round < maxRounds && ctx.Err() == nil && now.worth(); round++ {
		n := min(now.pages-now.locked, s.bytes, next)
		if n < pageSize() {
			r.stopped = fmt.Sprintf("its bound of %s was reached", size(s.options.Bytes))
			break
		}
		s.bytes -= n
		if err := s.round(ctx, watch, n); err != nil {
			return r, err
		}
		_ = tasks.Sleep(ctx, settle)
		before := now
		if now, err = readLeft(s.group); err != nil {
			return r, err
		}
		if s.lost(now) {
			return r, errLoss
		}
		next = max(next, before.pages) // all remaining pages, once some were freed
		if !progress(before, now, n) {
			next = firstRound
			if idle++; idle == 2 {
				r.stopped = fmt.Sprintf("%s remain because they are in use", size(now.pages))
				r.notes = append(r.notes, holders(ctx, s.env.Host)...)
				return r, nil
			}
			continue
		}
		idle = 0
	}
	if now.locked >= least {
		r.stopped = fmt.Sprintf("%s remain that a process has locked", size(now.locked))
		r.notes = append(r.notes, holders(ctx, s.env.Host)...)
	}
	return r, ctx.Err()
}

// progress reports whether a squeeze of n bytes has freed dying groups and not only other
// memory. It uses the number of dying groups if that is known.
func progress(before, now left, n int64) bool {
	if before.dying > 0 {
		return float64(before.dying-now.dying) >= noProgress*float64(before.dying)
	}
	return float64(before.pages-now.pages) >= noProgress*float64(n)
}

// lost reports whether too much page cache of living groups has been lost.
func (s *squeeze) lost(now left) bool {
	return float64(s.live-now.live) > max(maxLoss*float64(s.live), 1<<20)
}

// round makes the kernel reclaim n bytes.
func (s *squeeze) round(ctx context.Context, w *watch, n int64) error {
	check := func() error {
		now, err := readLeft(s.group)
		if err == nil && s.lost(now) {
			return errLoss
		}
		return nil // figures that cannot be read now are read afterwards
	}
	err := w.guarded(ctx, lossEvery, check, func(ctx context.Context) error {
		if s.group.V2 {
			return s.group.Reclaim(ctx, n)
		}
		return s.lower(ctx, n)
	})
	if errors.Is(err, unix.EBUSY) { // no more pages could be reclaimed
		return nil
	}
	return err
}

// HoldsDying is a part of the note of a report about a process that has locked pages of dying
// groups.
const HoldsDying = "holds dying groups"

// holders describes the processes that have locked pages of dying groups.
func holders(ctx context.Context, h probe.Host) []string {
	facts, err := probe.Read(ctx, h, "pinned")
	var notes []string
	for _, f := range facts {
		if f.Name == fact.PinnedPages && !f.Subject.IsHost() {
			file := ""
			if f.Subject.Device != "" {
				file = " of " + f.Subject.Device
			}
			notes = append(notes, fmt.Sprintf("process %d (%s) in %s %s: it has locked %s%s. They cannot be freed until it ends or unlocks them", f.Subject.Pid, f.Subject.Command, f.Subject.Cgroup, HoldsDying, size(int64(f.Value)), file))
		}
	}
	if err != nil && len(notes) == 0 {
		notes = append(notes, "the processes that lock pages of dying groups are unknown: "+err.Error())
	}
	return notes
}

// measureLeft returns the figures of a squeeze. Groups without pages are released
// slightly after their pages.
func measureLeft(ctx context.Context, h probe.Host, g cgroup.Group) ([]Measure, error) {
	l, err := readLeft(g)
	if err != nil {
		return nil, err
	}
	ms := []Measure{
		{"page cache of dying groups", "B", float64(l.pages)},
		{"page cache of living groups", "B", float64(l.live)},
	}
	if dying, ok := settledDying(ctx, h); ok {
		ms = append(ms, Measure{What: dyingFigure, Value: dying})
	}
	if l.usage > 0 {
		ms = append(ms, Measure{"memory charged to the group", "B", float64(l.usage)})
	}
	return ms, nil
}

// settledDying counts the dying groups when their number no longer falls.
func settledDying(ctx context.Context, h probe.Host) (float64, bool) {
	last := -1.0
	for range 20 {
		facts, err := probe.Read(ctx, h, "memcg")
		if err != nil {
			return 0, false
		}
		now := -1.0
		for _, f := range facts {
			if f.Name == fact.MemcgDying {
				now = f.Value
			}
		}
		if now < 0 {
			return 0, false
		}
		if last >= 0 && now >= last {
			return now, true
		}
		last = now
		_ = tasks.Sleep(ctx, settle)
	}
	return last, last >= 0
}

// syncLimit bounds the wait for dirty pages. Pages that are not written by then are not
// reclaimed.
const syncLimit = 15 * time.Second

// syncAll writes dirty pages, because no reclaim takes them. sync(2) cannot be
// interrupted.
func syncAll(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		unix.Sync()
		close(done)
	}()
	limit := time.NewTimer(syncLimit)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// size formats a number of bytes.
func size(n int64) string {
	units, v, i := []string{"B", "KiB", "MiB", "GiB", "TiB"}, float64(n), 0
	for ; v >= 1024 && i < len(units)-1; i++ {
		v /= 1024
	}
	if v < 10 && i > 0 {
		return fmt.Sprintf("%.1f %s", v, units[i])
	}
	return fmt.Sprintf("%.0f %s", v, units[i])
}
