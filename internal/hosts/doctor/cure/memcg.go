package cure

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/platform/linux/cgroup"
)

const (
	// least is how much the dead must have left: less is within the error of
	// the kernel's counting (64 pages for each CPU).
	least = 256 << 10
	// fewDying is under which number of dying groups none is looked for: half
	// of what the doctor calls many.
	fewDying = 1000
	// firstRound is the size of the first squeeze, which shows whether the
	// dead give way before the living do.
	firstRound = 8 << 20
	// maxRounds bounds the squeezes: each ends early, because the kernel frees
	// what it keeps for dead groups meanwhile, and that counts as well.
	maxRounds = 24
	// settle is until the kernel has let go of groups without pages.
	settle = 300 * time.Millisecond
	// addedUp is within which time what the kernel counts shows in a group's
	// figures (FLUSH_TIME in mm/memcontrol.c is 2 s).
	addedUp = 2200 * time.Millisecond
	// maxLoss is how much of the page cache of the living may go.
	maxLoss = 0.02
	// lossEvery is how often that is looked at.
	lossEvery = 5 * time.Millisecond
	// noProgress is how little of what was left a squeeze may free, twice.
	noProgress = 0.05
)

// Memcg frees dying memory cgroups by reclaiming a little at their parent: the
// kernel takes the pages of dead groups first. The group is a path, or "" for the
// one under which the dead have left most. On v1 the parent's limit is lowered
// below its usage and raised again at once; on v2 memory.reclaim does the same.
// Measured in docs/doctor-cures.md.
func Memcg(group string) Cure {
	return Cure{Name: "memcg", prepare: func(ctx context.Context, e Env, o Options) (act, error) {
		l, notes, err := chooseCounted(ctx, e.Host, group)
		if err != nil {
			return act{}, err
		}
		s := squeeze{env: e, options: o, group: l.group, bytes: o.Bytes}
		a := act{target: l.group.Path, notes: notes, locks: []string{l.group.Path}}
		a.plan = s.plan(l)
		if o.Apply && os.Geteuid() != 0 {
			return a, notRoot("squeezing a control group")
		}
		if !l.worth() {
			a.plan.Does, a.plan.Bytes = nil, 0
			if l.locked >= least {
				a.notes = append(a.notes, fmt.Sprintf("it cannot free the %s that somebody has locked", size(l.locked)))
			}
			a.notes = append(a.notes, fmt.Sprintf("beside that the dead left %s there: too little to be worth it", size(l.pages-l.locked)))
			a.notes = append(a.notes, holders(ctx, e.Host)...)
			return a, nil
		}
		a.measure = func(ctx context.Context) ([]Measure, error) { return measureLeft(ctx, e.Host, l.group) }
		a.do = s.do
		return a, nil
	}}
}

// chooseCounted is chooseLeft once the kernel has added up what it counts on each CPU
// and in each group: until then there may seem to be nothing left.
func chooseCounted(ctx context.Context, h probe.Host, group string) (left, []string, error) {
	l, notes, err := chooseLeft(ctx, h, group)
	if (err == nil && l.worth()) || (err != nil && !errors.Is(err, ErrNothing)) {
		return l, notes, err
	}
	select {
	case <-time.After(addedUp):
		return chooseLeft(ctx, h, group)
	case <-ctx.Done():
		return l, notes, err
	}
}

// chooseLeft is the group that was asked for, or the one that needs it most.
func chooseLeft(ctx context.Context, h probe.Host, group string) (left, []string, error) {
	if group != "" {
		g, err := findGroup(h, group)
		if err != nil {
			return left{}, nil, err
		}
		l, err := lookLeft(g)
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
		return best, notes, fmt.Errorf("%w: no control group has pages of dead ones below it", ErrNothing)
	}
	// A few that left much are no illness, and their pages may be of use.
	if n, ok := settledDying(ctx, h); ok && n < fewDying {
		return best, notes, holdfast.WithHint(fmt.Errorf("%w: only %.0f memory cgroups are dying on this host", ErrNothing, n), "--cgroup squeezes a group all the same")
	}
	return best, notes, nil
}

func (s *squeeze) plan(l left) Plan {
	n := min(s.bytes, l.pages-l.locked)
	p := Plan{
		Bytes: n,
		Gain:  fmt.Sprintf("the dead below %s have left %s of page cache, with about 47 KiB of the kernel's memory for each group; reclaims there get fast again", l.group.Path, size(l.pages)),
		Does:  []string{"write dirty pages to the disks (sync), which would block it"},
	}
	if l.group.V2 {
		p.Does = append(p.Does, fmt.Sprintf("have the kernel reclaim %s at %s (memory.reclaim), in rounds, the first of %s", size(n), l.group.Dir(), size(min(n, firstRound))))
		p.Risk = fmt.Sprintf("some page cache of the living; it ends when over %.0f %% of it has gone, or when they stall", 100*maxLoss)
	} else {
		p.Does = append(p.Does, fmt.Sprintf("lower the memory limit of %s below its usage by %s and restore it at once, in rounds, the first by %s; a guardian stands behind each", l.group.Dir(), size(n), size(min(n, firstRound))))
		p.Risk = fmt.Sprintf("some page cache of the living (it ends when over %.0f %% of it has gone, or when they stall); who allocates in the microseconds at the low limit has to wait", 100*maxLoss)
	}
	if l.locked > 0 {
		p.Does = append(p.Does, fmt.Sprintf("leave alone %s that somebody has locked: nothing frees these but that one", size(l.locked)))
	}
	return p
}

// squeeze is one cure of dying groups.
type squeeze struct {
	env     Env
	options Options
	group   cgroup.Group
	bytes   int64 // that may still be asked for
	live    int64 // page cache of the living before
}

func (s *squeeze) do(ctx context.Context) (result, error) {
	var r result
	if err := syncAll(ctx); err != nil {
		return r, err
	}
	now, err := lookLeft(s.group)
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
			r.stopped = fmt.Sprintf("its bound of %s was used up", size(s.options.Bytes))
			break
		}
		s.bytes -= n
		if err := s.round(ctx, watch, n); err != nil {
			return r, err
		}
		sleep(ctx, settle)
		before := now
		if now, err = lookLeft(s.group); err != nil {
			return r, err
		}
		if s.lost(now) {
			return r, errLoss
		}
		next = max(next, before.pages) // as much as there is, once some went
		if !progress(before, now, n) {
			next = firstRound
			if idle++; idle == 2 {
				r.stopped = fmt.Sprintf("%s is left that does not go: it is in use", size(now.pages))
				r.notes = append(r.notes, holders(ctx, s.env.Host)...)
				return r, nil
			}
			continue
		}
		idle = 0
	}
	if now.locked >= least {
		r.stopped = fmt.Sprintf("%s is left that somebody has locked", size(now.locked))
		r.notes = append(r.notes, holders(ctx, s.env.Host)...)
	}
	return r, ctx.Err()
}

// progress reports whether a squeeze of n bytes has freed the dead and not only
// others: by their number where that is known.
func progress(before, now left, n int64) bool {
	if before.dying > 0 {
		return float64(before.dying-now.dying) >= noProgress*float64(before.dying)
	}
	return float64(before.pages-now.pages) >= noProgress*float64(n)
}

// lost reports whether too much of the living's page cache has gone.
func (s *squeeze) lost(now left) bool {
	return float64(s.live-now.live) > max(maxLoss*float64(s.live), 1<<20)
}

// round has the kernel take n bytes.
func (s *squeeze) round(ctx context.Context, w *watch, n int64) error {
	check := func() error {
		now, err := lookLeft(s.group)
		if err == nil && s.lost(now) {
			return errLoss
		}
		return nil // what cannot be looked at is looked at afterwards
	}
	err := w.guarded(ctx, lossEvery, check, func(ctx context.Context) error {
		if s.group.V2 {
			return s.group.Reclaim(ctx, n)
		}
		return s.lower(ctx, n)
	})
	if errors.Is(err, unix.EBUSY) { // it found no more
		return nil
	}
	return err
}

// holders names who has locked the pages of dead groups.
func holders(ctx context.Context, h probe.Host) []string {
	facts, err := look(ctx, h, "pinned")
	var notes []string
	for _, f := range facts {
		if f.Name == fact.PinnedPages && !f.Subject.IsHost() {
			file := ""
			if f.Subject.Device != "" {
				file = " of " + f.Subject.Device
			}
			notes = append(notes, fmt.Sprintf("process %d (%s) in %s holds dead groups: it has locked %s%s. Nothing frees these until it ends or unlocks them", f.Subject.Pid, f.Subject.Command, f.Subject.Cgroup, size(int64(f.Value)), file))
		}
	}
	if err != nil && len(notes) == 0 {
		notes = append(notes, "who locks pages of dead groups could not be seen: "+err.Error())
	}
	return notes
}

// look runs one of the doctor's probes.
func look(ctx context.Context, h probe.Host, name string) ([]fact.Fact, error) {
	for _, p := range probe.All() {
		if p.Name != name {
			continue
		}
		finish, err := p.Start(ctx, h)
		if err != nil {
			return nil, err
		}
		return finish(ctx, 0)
	}
	return nil, fmt.Errorf("there is no probe %q", name)
}

// measureLeft gives the figures of a squeeze. Groups without pages go a moment
// later than these.
func measureLeft(ctx context.Context, h probe.Host, g cgroup.Group) ([]Measure, error) {
	l, err := lookLeft(g)
	if err != nil {
		return nil, err
	}
	ms := []Measure{
		{"page cache that the dead left", "B", float64(l.pages)},
		{"page cache of the living", "B", float64(l.live)},
	}
	if dying, ok := settledDying(ctx, h); ok {
		ms = append(ms, Measure{What: "dying memory cgroups on this host", Value: dying})
	}
	if l.usage > 0 {
		ms = append(ms, Measure{"memory charged to the group", "B", float64(l.usage)})
	}
	return ms, nil
}

// settledDying counts the dying once they do not get fewer.
func settledDying(ctx context.Context, h probe.Host) (float64, bool) {
	last := -1.0
	for range 20 {
		facts, err := look(ctx, h, "memcg")
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
		sleep(ctx, settle)
	}
	return last, last >= 0
}

// syncLimit bounds the wait for dirty pages. What is not written then is left.
const syncLimit = 15 * time.Second

// syncAll writes dirty pages: no reclaim takes these. sync(2) cannot be broken off.
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

// size writes bytes as people read them.
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
