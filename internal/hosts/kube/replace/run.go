package replace

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/hosts/kube"
)

// ErrTaken means that another process continues the run, or has abandoned it.
var ErrTaken = errors.New("another process has taken the run over, or abandoned it")

// errFreed ends a retry when the node is already free.
var errFreed = errors.New("the mark is gone")

// ErrHealth means that the cluster lost nodes during the run.
var ErrHealth = errors.New("the cluster's health has degraded")

const (
	conflicts    = 10               // tries to change a node after conflicts
	cleanLimit   = time.Minute      // to uncordon the remaining nodes
	healthEvery  = 30 * time.Second // between checks of all nodes
	readyEvery   = 2 * time.Second  // between checks whether pods are ready elsewhere
	readySeldom  = 15 * time.Second
	longestPause = time.Second / 2 // after a conflict
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
	x.drain.Trouble = x.trouble
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
	next := make(chan string)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(next)
		for _, n := range p.Nodes {
			select {
			case next <- n.Name:
			case <-ctx.Done():
				return
			}
		}
	})
	for range min(x.conf.MaxUnavailable, len(p.Nodes)) {
		wg.Go(func() {
			for name := range next {
				err := healthy(ctx)
				if err == nil {
					err = x.node(ctx, name)
				}
				if err != nil {
					stop(fmt.Errorf("node %s: %w", name, err))
				}
			}
		})
	}
	ended := make(chan struct{})
	var guard sync.WaitGroup
	guard.Go(func() {
		for {
			select {
			case <-ended:
				return
			case <-ctx.Done():
				return
			case <-time.After(healthEvery):
			}
			if err := healthy(ctx); err != nil {
				stop(err)
			}
		}
	})
	wg.Wait()
	close(ended)
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
		err := x.patiently(ctx, func() (err error) { all, err = x.client.Nodes(ctx, ""); return err })
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

func (x *run) patiently(ctx context.Context, do func() error) error {
	return kube.Patiently(ctx, x.conf.Patience, do, x.trouble)
}

func (x *run) trouble(err error, pause time.Duration) {
	x.tell("", "%v; trying again in %v", err, pause.Round(time.Second))
}

// claim cordons a node and marks it for this run.
func (x *run) claim(ctx context.Context, name string) error {
	err := x.change(ctx, name, func(n kube.Node) (kube.NodePatch, error) {
		m, err := MarkOf(n)
		switch {
		case err != nil:
			return kube.NodePatch{}, err
		case m == nil || m.over():
			m = &Mark{Run: x.id, Phase: Waiting, Cordoned: n.Spec.Unschedulable}
		case m.Holder == x.holder: // set by an earlier patch with a lost answer
		case !x.conf.Resume:
			return kube.NodePatch{}, unfinished([]candidate{{node: n, mark: m}})
		}
		x.id = m.Run
		m.Holder, m.Since = x.holder, x.now().UTC()
		x.setPhase(name, m.Phase)
		return m.patch(n)
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

// change reads a node and patches it, again after conflicts.
func (x *run) change(ctx context.Context, name string, how func(kube.Node) (kube.NodePatch, error)) error {
	for try := 1; ; try++ {
		err := x.patiently(ctx, func() error {
			n, err := x.client.Node(ctx, name)
			if err != nil {
				return err
			}
			p, err := how(n)
			if err != nil {
				return err
			}
			_, err = x.client.PatchNode(ctx, name, p)
			return err
		})
		if kube.Code(err) != http.StatusConflict || try == conflicts {
			return err
		}
		if err := kube.Sleep(ctx, min(kube.Pause(try, nil), longestPause)); err != nil {
			return err
		}
	}
}

// advance moves a claimed node to a phase.
func (x *run) advance(ctx context.Context, name string, p Phase) error {
	err := x.change(ctx, name, func(n kube.Node) (kube.NodePatch, error) {
		m, err := MarkOf(n)
		if err == nil && (m == nil || m.Holder != x.holder) {
			err = ErrTaken
		}
		if err != nil {
			return kube.NodePatch{}, err
		}
		m.Phase, m.Since = p, x.now().UTC()
		return m.patch(n)
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
		e := x.patiently(ctx, func() error { _, err := x.client.Node(ctx, name); return err })
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
	x.mu.Lock()
	names := make([]string, 0, len(x.phases))
	for n := range x.phases {
		names = append(names, n)
	}
	x.mu.Unlock()
	slices.Sort(names)
	var errs []error
	for _, name := range names {
		p, _ := x.phase(name)
		if p == Done {
			continue
		}
		if p != Waiting && p != Draining {
			x.report.Left = append(x.report.Left, name)
			continue
		}
		free, err := x.free(ctx, name, x.holder)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("node %s is still cordoned: %w", name, err))
		case free:
			x.report.Uncordoned = append(x.report.Uncordoned, name)
			x.tell(name, "uncordoned")
		}
	}
	return errors.Join(errs...)
}

// free removes a node's mark and uncordons it, if holder holds the mark; ""
// matches any holder. It reports whether the node takes pods again.
func (x *run) free(ctx context.Context, name, holder string) (bool, error) {
	free, sent := false, false
	err := x.change(ctx, name, func(n kube.Node) (kube.NodePatch, error) {
		m, err := MarkOf(n)
		switch {
		case err != nil:
			return kube.NodePatch{}, err
		case m == nil && sent: // the answer to the patch was lost
			return kube.NodePatch{}, errFreed
		case m == nil || holder != "" && m.Holder != holder:
			return kube.NodePatch{}, ErrTaken
		}
		sent = true
		early := m.Phase == Waiting || m.Phase == Draining
		free = early && !m.Cordoned
		return m.unpatch(n, early), nil
	})
	switch {
	case errors.Is(err, errFreed):
		return free, nil
	case errors.Is(err, ErrTaken), errors.Is(err, holdfast.ErrNotFound):
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
