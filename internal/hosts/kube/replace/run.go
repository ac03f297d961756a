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

	moving sync.Mutex // held while pods of a node move, if there is a surge

	mu     sync.Mutex
	marks  map[string]Mark // of the claimed nodes
	taken  map[string]bool // pods already reported as replacements
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
		marks: make(map[string]Mark), taken: make(map[string]bool),
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
		err = errors.Join(err, x.release(ctx, errors.Is(err, ErrTaken)))
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
	if _, err := x.settle(ctx); err != nil { // of a run that died
		return err
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
		x.setMark(name, *m)
		return m.patch()
	})
	if errors.Is(err, holdfast.ErrNotFound) {
		x.mu.Lock()
		delete(x.marks, name)
		x.mu.Unlock()
		x.tell(name, "is gone")
		return nil
	}
	if err == nil {
		x.tell(name, "cordoned")
	}
	return err
}

func (x *run) setMark(name string, m Mark) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.marks[name] = m
}

func (x *run) mark(name string) (Mark, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	m, ok := x.marks[name]
	return m, ok
}

// change changes a node, with retries.
func (x *run) change(ctx context.Context, name string, how func(kube.Node) (*kube.NodePatch, error)) error {
	return x.drain.patiently(ctx, func() error { return x.client.EditNode(ctx, name, how) })
}

// update changes the mark of a claimed node.
func (x *run) update(ctx context.Context, name string, how func(*Mark)) error {
	var now Mark
	err := x.change(ctx, name, func(n kube.Node) (*kube.NodePatch, error) {
		m, err := MarkOf(n)
		if err == nil && (m == nil || m.Holder != x.holder) {
			err = ErrTaken
		}
		if err != nil {
			return nil, err
		}
		how(m)
		now = *m
		return m.patch()
	})
	if err == nil {
		x.setMark(name, now)
	}
	return err
}

// advance moves a claimed node to a phase.
func (x *run) advance(ctx context.Context, name string, p Phase) error {
	err := x.update(ctx, name, func(m *Mark) { m.Phase, m.Since = p, time.Now().UTC() })
	if err == nil {
		x.tell(name, "%s", p)
	}
	return err
}

// release undoes surges, unless another process has taken the run over, and
// uncordons the nodes that the run has not drained. It continues if ctx is done.
func (x *run) release(ctx context.Context, taken bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanLimit)
	defer cancel()
	var errs []error
	if !taken {
		_, err := x.settle(ctx)
		errs = append(errs, err)
	}
	for _, name := range slices.Sorted(maps.Keys(x.marks)) { // no other goroutine runs any more
		switch p := x.marks[name].Phase; {
		case p == Done:
		case p.early():
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
		free = m.Phase.early() && !m.Cordoned
		return m.unpatch(m.Phase.early()), nil
	})
	if errors.Is(err, ErrTaken) || errors.Is(err, holdfast.ErrNotFound) {
		return false, nil
	}
	return free, err
}

// Abandoned is what Abandon has done.
type Abandoned struct {
	Uncordoned []string `json:"uncordoned"`  // nodes that take pods again
	Left       []string `json:"left"`        // nodes that stay cordoned
	ScaledBack []string `json:"scaled_back"` // workloads
}

// Abandon ends an earlier run that did not end: workloads have their number of pods
// again, and nodes not drained take pods again. Drained nodes stay cordoned.
func (r *Runner) Abandon(ctx context.Context) (Abandoned, error) {
	x := &run{Runner: r}
	done := Abandoned{Uncordoned: []string{}, Left: []string{}, ScaledBack: []string{}}
	all, err := r.client.Nodes(ctx, "")
	if err != nil {
		return done, err
	}
	list, err := marked(all)
	if err != nil {
		return done, err
	}
	back, err := x.settle(ctx)
	done.ScaledBack = append(done.ScaledBack, back...)
	errs := []error{err}
	for _, c := range list {
		free, err := x.free(ctx, c.node.Meta.Name, "")
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("node %s: %w", c.node.Meta.Name, err))
		case free:
			done.Uncordoned = append(done.Uncordoned, c.node.Meta.Name)
		default:
			done.Left = append(done.Left, c.node.Meta.Name)
		}
	}
	return done, errors.Join(errs...)
}
