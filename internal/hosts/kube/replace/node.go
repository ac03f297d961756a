package replace

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast"
	"holdfast/internal/hosts/kube"
)

// turn is the replacement of one node.
type turn struct {
	*run
	name   string
	rep    NodeReport
	works  []*workload // of the node's pods, before any moved
	output string      // of the phase's command
}

// stage is what is done in a phase.
type stage struct {
	phase Phase
	on    bool
	do    func(context.Context) error // nil: nothing
}

func (t *turn) stages() []stage {
	c := t.conf
	return []stage{
		{Provisioning, len(c.Provision) > 0, t.provision},
		{Joining, len(c.Provision) > 0, t.join},
		{Preparing, len(c.Disk) > 0, func(ctx context.Context) error { return t.command(ctx, c.Disk) }},
		{Surging, c.Surge, t.surge},
		{Draining, true, t.evict},
		{Drained, true, nil},
		{Deleting, len(c.Command) > 0, func(ctx context.Context) error { return t.command(ctx, c.Command) }},
		{Done, true, nil},
	}
}

// node replaces one node.
func (x *run) node(ctx context.Context, name string) error {
	m, mine := x.mark(name)
	if !mine {
		return nil // it was gone when it was claimed
	}
	t := &turn{run: x, name: name, rep: NodeReport{Node: name, NewNode: m.New, Phases: []PhaseReport{}, Surges: []Surge{}, Pods: []PodReport{}}}
	err := t.all(ctx)
	if errors.Is(err, holdfast.ErrNotFound) {
		e := x.drain.patiently(ctx, func() error { _, err := x.client.Node(ctx, name); return err })
		if errors.Is(e, holdfast.ErrNotFound) {
			x.tell(name, "is gone")
			x.setMark(name, Mark{Phase: Done})
			err = t.scaleBack(ctx)
		}
	}
	m, _ = x.mark(name)
	t.rep.Phase = m.Phase
	if err != nil {
		t.rep.Error = err.Error()
	}
	x.mu.Lock()
	x.report.Nodes = append(x.report.Nodes, t.rep)
	x.mu.Unlock()
	return err
}

// all carries out the stages.
func (t *turn) all(ctx context.Context) error {
	moving := false
	still := func() {
		if moving {
			moving = false
			t.moving.Unlock()
		}
	}
	defer still()
	for _, s := range t.stages() {
		m, _ := t.mark(t.name)
		if !s.on || m.Made.rank() >= s.phase.rank() {
			continue
		}
		switch s.phase {
		case Surging:
			t.moving.Lock()
			moving = true
		case Drained:
			still()
		}
		if err := t.one(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// one carries out one stage.
func (t *turn) one(ctx context.Context, s stage) error {
	err := t.advance(ctx, t.name, s.phase)
	if errors.Is(err, holdfast.ErrNotFound) && s.phase == Done && len(t.conf.Command) > 0 {
		t.setMark(t.name, Mark{Phase: Done})
		t.tell(t.name, "%s", Done)
		return nil
	}
	if err != nil || s.do == nil {
		return err
	}
	begin := time.Now()
	t.output = ""
	err = s.do(ctx)
	t.rep.Phases = append(t.rep.Phases, PhaseReport{Phase: s.phase, Took: holdfast.Millis(time.Since(begin)), Output: t.output})
	if err == nil && s.phase.rank() <= Preparing.rank() {
		err = t.update(ctx, t.name, func(m *Mark) { m.Made = s.phase })
	}
	return err
}

// pods returns the pods that leave the node.
func (t *turn) pods(ctx context.Context) ([]kube.Pod, error) {
	all, err := t.drain.Pods(ctx, t.name)
	if err != nil {
		return nil, err
	}
	return Evictable(t.name, all)
}

// evict empties the node and waits for its pods to be ready elsewhere.
func (t *turn) evict(ctx context.Context) error {
	pods, err := t.pods(ctx)
	if err != nil {
		return err
	}
	if !t.conf.Surge { // otherwise they were counted before it
		if t.works, err = t.workloads(ctx, pods); err != nil {
			return err
		}
	}
	d := t.drain
	d.Accepted = t.accepted
	limited, cancel := context.WithTimeout(ctx, t.conf.DrainLimit)
	defer cancel()
	if err := d.Evict(limited, pods); err != nil {
		if ctx.Err() == nil && limited.Err() != nil {
			err = fmt.Errorf("not empty within %v: %w", t.conf.DrainLimit, err)
		}
		return err
	}
	t.rep.Evicted = len(pods)
	if err := t.scaleBack(ctx); err != nil { // of pods that went by themselves
		return err
	}
	return t.ready(ctx, t.works, func(w *workload, pods []kube.Pod) {
		t.rep.Pods = append(t.rep.Pods, t.rows(t.name, w, pods)...)
	})
}

// ready waits until the pods of workloads are ready elsewhere, up to ReadyLimit. came
// receives those of each.
func (t *turn) ready(ctx context.Context, works []*workload, came func(*workload, []kube.Pod)) error {
	limited, cancel := context.WithTimeout(ctx, t.conf.ReadyLimit)
	defer cancel()
	for _, w := range works {
		pods, err := t.elsewhere(limited, t.name, w)
		came(w, pods)
		if err != nil && ctx.Err() == nil && limited.Err() != nil {
			err = fmt.Errorf("%w: the pods of %s %s/%s are not ready elsewhere within %v: %w", ErrHealth, w.owner.Kind, w.namespace, w.owner.Name, t.conf.ReadyLimit, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
