package profile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/perf"
	"holdfast/internal/platform/linux/proc"
)

// Engine lists containers with their names.
type Engine interface {
	List(ctx context.Context, labels map[string]string) ([]engine.Container, error)
}

// Recorder makes a recording of this host.
type Recorder struct {
	Proc   proc.FS
	Groups cgroup.Mounts
	// Engine may be nil. Containers then have no names, and NoEngine holds the reason.
	Engine   Engine
	NoEngine error
	Hz       int           // samples of a busy CPU per second; 0 is DefaultHz
	For      time.Duration // MinFor to MaxFor
	// Container restricts the recording to one container, by its name or id; "" records
	// all.
	Container string
	// FramePointers leaves user stacks to the kernel, which walks them by frame pointers
	// only, and saves the copies of stacks.
	FramePointers bool
	// Start, if it is not nil, records containers from their start on: the named one, or
	// with Start.Command all that start. For counts from the first start.
	Start *Start
	Step  func(string) // called with each step; may be nil
}

// Validate checks the fields.
func (r Recorder) Validate() error {
	if r.For < MinFor || r.For > MaxFor {
		return fmt.Errorf("a recording of %v: it must be from %v to %v", r.For, MinFor, MaxFor)
	}
	if r.Hz != 0 && (r.Hz < perf.MinHz || r.Hz > perf.MaxHz) {
		return fmt.Errorf("%d samples a second: it must be from %d to %d", r.Hz, perf.MinHz, perf.MaxHz)
	}
	if s := r.Start; s != nil && (s.Within < MinFor || s.Within > MaxWait) {
		return fmt.Errorf("a wait of %v: it must be from %v to %v", s.Within, MinFor, MaxWait)
	}
	if r.Start != nil && r.Start.Command == nil && r.Container == "" {
		return errors.New("no container is named: one start of many cannot be awaited")
	}
	return nil
}

// Run records for r.For, and needs some more time to resolve names. Only one Run may be
// active at a time. It returns ErrNoStart, perf.ErrForbidden, perf.ErrUnsupported, or
// holdfast.ErrNotFound if there is no such container.
func (r Recorder) Run(ctx context.Context) (*Profile, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	if r.Hz == 0 {
		r.Hz = DefaultHz
	}
	names := newNames()
	names.add(r.askBriefly(ctx))
	only, record := "", r.sample
	if r.Start == nil {
		var err error
		if only, err = names.find(r.Container); err != nil {
			return nil, err
		}
	} else {
		record = func(ctx context.Context, s *perf.Sampler, t *tracker) (time.Time, error) {
			return r.waitFor(ctx, s, t, names)
		}
	}
	s, err := perf.Open(r.Hz, !r.FramePointers)
	if err != nil {
		return nil, err
	}
	t := newTracker(r.Proc, newGroups(r.Groups, s.Cgroups()))
	p := &Profile{Meta: r.meta(s)}
	began, err := record(ctx, s, t)
	if err = errors.Join(err, s.Close()); err != nil {
		return nil, err
	}
	p.Meta.Began, p.Meta.Seconds = began, time.Since(began).Seconds()
	p.Meta.Lost, p.Meta.Dropped = t.lost, t.dropped
	r.step("finding names")
	names.add(r.askBriefly(ctx)) // including containers that were created meanwhile
	t.forget()
	p.Meta.Gaps = append(p.Meta.Gaps, names.gaps()...)
	gaps := t.assemble(p, names, only)
	p.Meta.Gaps = append(p.Meta.Gaps, gaps...)
	return p, ctx.Err()
}

// sample samples the CPUs until the time is over.
func (r Recorder) sample(ctx context.Context, s *perf.Sampler, t *tracker) (began time.Time, err error) {
	r.step(fmt.Sprintf("recording for %v", r.For.Round(time.Second)))
	tick := time.NewTicker(s.Interval()) // new processes are then looked up in procfs
	defer tick.Stop()
	end := time.NewTimer(r.For)
	defer end.Stop()
	began = time.Now()
	if err := s.Start(); err != nil {
		return began, err
	}
	for {
		select {
		case <-ctx.Done():
			return began, ctx.Err()
		case <-tick.C:
			if err := t.read(s); err != nil {
				return began, err
			}
		case <-end.C:
			return began, errors.Join(s.Stop(), t.read(s))
		}
	}
}

func (r Recorder) meta(s *perf.Sampler) Meta {
	m := Meta{Format: format, CPUs: s.CPUs(), Hz: r.Hz, Container: r.Container}
	if name, err := os.Hostname(); err == nil {
		m.Host = name
	}
	var uts unix.Utsname
	if unix.Uname(&uts) == nil {
		m.Kernel = unix.ByteSliceToString(uts.Release[:])
	}
	return m
}

func (r Recorder) step(what string) {
	if r.Step != nil {
		r.Step(what)
	}
}

// namesLimit bounds a request for names. An engine that hangs must not keep a recording from
// beginning or ending.
const namesLimit = 5 * time.Second

// askBriefly is ask within namesLimit.
func (r Recorder) askBriefly(ctx context.Context) ([]engine.Container, error) {
	ctx, cancel := context.WithTimeout(ctx, namesLimit)
	defer cancel()
	return r.ask(ctx)
}

// ask lists the engine's containers.
func (r Recorder) ask(ctx context.Context) ([]engine.Container, error) {
	if r.Engine == nil {
		if r.NoEngine == nil {
			return nil, errors.New("no container engine was given")
		}
		return nil, r.NoEngine
	}
	return r.Engine.List(ctx, nil)
}

// names holds the names of containers, including those that have been removed.
type names struct {
	byID map[string]engine.Container
	err  error // the first error of the engine
}

func newNames() *names { return &names{byID: make(map[string]engine.Container)} }

func (n *names) add(list []engine.Container, err error) {
	if n.err == nil {
		n.err = err
	}
	for _, c := range list {
		n.byID[c.ID] = c
	}
}

func (n *names) gaps() []string {
	if n.err == nil {
		return nil
	}
	return []string{"containers may have no names: " + n.err.Error()}
}

// shortestID is the minimum length of an abbreviated id.
const shortestID = 4

// find returns the id, or its beginning, of the named container.
func (n *names) find(name string) (string, error) {
	if name == "" {
		return "", nil
	}
	for id, c := range n.byID {
		if c.Name == name || id == name {
			return id, nil
		}
	}
	for id := range n.byID {
		if len(name) >= shortestID && len(name) < len(id) && id[:len(name)] == name {
			return id, nil
		}
	}
	err := fmt.Errorf("container %q: %w", name, holdfast.ErrNotFound)
	if n.err != nil {
		return "", fmt.Errorf("container %q is not known: %w", name, n.err)
	}
	return "", holdfast.WithHint(err, "`docker ps` lists those that run")
}

// task returns the container and control group of a task in a control group.
func (n *names) task(group string) Task {
	w := Task{Cgroup: fact.UnitGroup(group), ContainerID: fact.ContainerID(group)}
	if c, ok := n.byID[w.ContainerID]; ok {
		w.Container, w.Image = c.Name, c.Image
	}
	return w
}
