package replace

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast"
	"holdfast/internal/hosts/kube"
)

// ErrTaken means that another process continues the run, or has abandoned it.
var ErrTaken = errors.New("another process has taken the run over, or abandoned it")

// ErrHealth means that the cluster lost nodes during the run.
var ErrHealth = errors.New("the cluster's health has degraded")

const (
	cleanLimit  = time.Minute      // to uncordon the remaining nodes
	healthEvery = 30 * time.Second // between checks of all nodes
	readyEvery  = 2 * time.Second  // between checks whether pods are ready elsewhere
	readySeldom = 15 * time.Second
)

// run is one run.
type run struct {
	*Runner
	id, holder string
	step       func(Step)

	mu     sync.Mutex
	phases map[string]Phase // of the claimed nodes
	taken  map[string]bool  // pods already reported as replacements
	report Report
}

// Run replaces the nodes of a plan and returns when it has ended. step receives
// progress messages, one at a time, and may be nil. The first failure, a
// degradation of the cluster's health, or the end of ctx stops the run: no
// further pod is evicted, and nodes not drained take pods again. The report is
// also valid with an error.
func (r *Runner) Run(ctx context.Context, p Plan, step func(Step)) (Report, error) {
	x := &run{
		Runner: r, id: rand.Text()[:10], holder: rand.Text(), step: step,
		phases: make(map[string]Phase), taken: make(map[string]bool),
		report: Report{Nodes: []NodeReport{}, Uncordoned: []string{}, Left: []string{}},
	}
	x.drain.Said = func(pod kube.Meta, what string) { x.tell("", "pod %s/%s: %s", pod.Namespace, pod.Name, what) }
	x.drain.Trouble = func(err error, pause time.Duration) {
		x.tell("", "%v; trying again in %v", err, pause.Round(time.Second))
	}
	err := x.all(ctx, p)
	x.report.Run = x.id
	if err != nil {
		x.report.Stopped = err.Error()
		err = errors.Join(err, x.release(ctx))
	}
	return x.report, err
}

func (x *run) tell(node, format string, a ...any) {
	if x.step == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.step(Step{Node: node, What: fmt.Sprintf(format, a...)})
}

// all claims the nodes and replaces them, MaxUnavailable at a time.
func (x *run) all(ctx context.Context, p Plan) error {
	healthy, err := x.watchHealth(ctx, p)
	if err != nil {
		return err
	}
	for _, n := range p.Nodes {
		if err := x.claim(ctx, n.Name); err != nil {
			return err
		}
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	watching, done := context.WithCancel(ctx)
	var guard sync.WaitGroup
	guard.Go(func() {
		for kube.Sleep(watching, healthEvery) == nil {
			if err := healthy(watching); err != nil && watching.Err() == nil {
				stop(err)
			}
		}
	})
	var nodes errgroup.Group
	nodes.SetLimit(x.conf.MaxUnavailable)
	for _, n := range p.Nodes {
		nodes.Go(func() error {
			if ctx.Err() != nil {
				return nil // the run has stopped
			}
			err := healthy(ctx)
			if err == nil {
				err = x.node(ctx, n.Name)
			}
			if err != nil {
				stop(fmt.Errorf("node %s: %w", n.Name, err))
			}
			return nil
		})
	}
	_ = nodes.Wait() // the functions return no errors
	done()
	guard.Wait()
	return context.Cause(ctx)
}

// watchHealth returns a function that compares all other nodes with their state
// at the start.
func (x *run) watchHealth(ctx context.Context, p Plan) (func(context.Context) error, error) {
	mine := make(map[string]bool)
	for _, n := range p.Nodes {
		mine[n.Name] = true
	}
	ready := make(map[string]bool)
	var mu sync.Mutex
	look := func(ctx context.Context) error {
		var all []kube.Node
		err := x.drain.patiently(ctx, func() (err error) { all, err = x.client.Nodes(ctx, ""); return err })
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		for _, n := range all {
			switch {
			case mine[n.Meta.Name]:
			case n.Ready():
				ready[n.Meta.Name] = true
			case ready[n.Meta.Name]:
				return fmt.Errorf("%w: node %s is not ready any more", ErrHealth, n.Meta.Name)
			}
		}
		return nil
	}
	return look, look(ctx)
}

// claim cordons a node and marks it for this run.
func (x *run) claim(ctx context.Context, name string) error {
	err := x.change(ctx, name, func(n kube.Node) (*kube.NodePatch, error) {
		m, err := MarkOf(n)
		switch {
		case err != nil:
			return nil, err
		case m == nil || m.over():
			m = &Mark{Run: x.id, Phase: Waiting, Cordoned: n.Spec.Unschedulable}
		case m.Holder == x.holder: // set by an earlier patch with a lost answer
		case !x.conf.Resume:
			return nil, unfinished([]candidate{{node: n, mark: m}})
		}
		x.id = m.Run
		m.Holder, m.Since = x.holder, time.Now().UTC()
		x.setPhase(name, m.Phase)
		return m.patch()
	})
	if errors.Is(err, holdfast.ErrNotFound) {
		x.setPhase(name, "")
		x.tell(name, "is gone")
		return nil
	}
	if err == nil {
		x.tell(name, "cordoned")
	}
	return err
}

func (x *run) setPhase(name string, p Phase) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if p == "" {
		delete(x.phases, name)
		return
	}
	x.phases[name] = p
}

func (x *run) phase(name string) (Phase, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	p, ok := x.phases[name]
	return p, ok
}

// change changes a node, with retries.
func (x *run) change(ctx context.Context, name string, how func(kube.Node) (*kube.NodePatch, error)) error {
	return x.drain.patiently(ctx, func() error { return x.client.EditNode(ctx, name, how) })
}

// advance moves a claimed node to a phase.
func (x *run) advance(ctx context.Context, name string, p Phase) error {
	err := x.change(ctx, name, func(n kube.Node) (*kube.NodePatch, error) {
		m, err := MarkOf(n)
		if err == nil && (m == nil || m.Holder != x.holder) {
			err = ErrTaken
		}
		if err != nil {
			return nil, err
		}
		m.Phase, m.Since = p, time.Now().UTC()
		return m.patch()
	})
	if err == nil {
		x.setPhase(name, p)
		x.tell(name, "%s", p)
	}
	return err
}

// node replaces one node.
func (x *run) node(ctx context.Context, name string) error {
	if _, mine := x.phase(name); !mine {
		return nil // it was gone when it was claimed
	}
	rep := NodeReport{Node: name, Pods: []PodReport{}}
	err := x.stages(ctx, name, &rep)
	if errors.Is(err, holdfast.ErrNotFound) {
		e := x.drain.patiently(ctx, func() error { _, err := x.client.Node(ctx, name); return err })
		if errors.Is(e, holdfast.ErrNotFound) {
			x.tell(name, "is gone")
			x.setPhase(name, Done)
			err = nil
		}
	}
	rep.Phase, _ = x.phase(name)
	if err != nil {
		rep.Error = err.Error()
	}
	x.mu.Lock()
	x.report.Nodes = append(x.report.Nodes, rep)
	x.mu.Unlock()
	return err
}

func (x *run) stages(ctx context.Context, name string, rep *NodeReport) error {
	if err := x.advance(ctx, name, Draining); err != nil {
		return err
	}
	if err := x.empty(ctx, name, rep); err != nil {
		return err
	}
	if err := x.advance(ctx, name, Drained); err != nil {
		return err
	}
	if len(x.conf.Command) > 0 {
		if err := x.advance(ctx, name, Deleting); err != nil {
			return err
		}
		if err := x.command(ctx, name); err != nil {
			return err
		}
	}
	err := x.advance(ctx, name, Done)
	if errors.Is(err, holdfast.ErrNotFound) && len(x.conf.Command) > 0 {
		x.setPhase(name, Done)
		x.tell(name, "%s", Done)
		return nil
	}
	return err
}

// release uncordons the nodes that the run has not drained. It continues if ctx
// is done.
func (x *run) release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanLimit)
	defer cancel()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(x.phases)) { // no other goroutine runs any more
		switch x.phases[name] {
		case Done:
		case Waiting, Draining:
			free, err := x.free(ctx, name, x.holder)
			switch {
			case err != nil:
				errs = append(errs, fmt.Errorf("node %s is still cordoned: %w", name, err))
			case free:
				x.report.Uncordoned = append(x.report.Uncordoned, name)
				x.tell(name, "uncordoned")
			}
		default:
			x.report.Left = append(x.report.Left, name)
		}
	}
	return errors.Join(errs...)
}

// free removes a node's mark and uncordons it, if holder holds the mark; ""
// matches any holder. It reports whether the node takes pods again.
func (x *run) free(ctx context.Context, name, holder string) (bool, error) {
	free, sent := false, false
	err := x.change(ctx, name, func(n kube.Node) (*kube.NodePatch, error) {
		m, err := MarkOf(n)
		switch {
		case err != nil:
			return nil, err
		case m == nil && sent: // the answer to the patch was lost
			return nil, nil
		case m == nil || holder != "" && m.Holder != holder:
			return nil, ErrTaken
		}
		sent = true
		early := m.Phase == Waiting || m.Phase == Draining
		free = early && !m.Cordoned
		return m.unpatch(early), nil
	})
	if errors.Is(err, ErrTaken) || errors.Is(err, holdfast.ErrNotFound) {
		return false, nil
	}
	return free, err
}

// Abandon ends an earlier run that did not end: nodes not drained take pods
// again. Drained nodes stay cordoned and are returned as left.
func (r *Runner) Abandon(ctx context.Context) (freed, left []string, err error) {
	x := &run{Runner: r}
	all, err := r.client.Nodes(ctx, "")
	if err != nil {
		return nil, nil, err
	}
	list, err := marked(all)
	if err != nil {
		return nil, nil, err
	}
	var errs []error
	for _, c := range list {
		free, err := x.free(ctx, c.node.Meta.Name, "")
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("node %s: %w", c.node.Meta.Name, err))
		case free:
			freed = append(freed, c.node.Meta.Name)
		default:
			left = append(left, c.node.Meta.Name)
		}
	}
	return freed, left, errors.Join(errs...)
}
