package replace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/hosts/doctor/ranking"
	"holdfast/internal/hosts/kube"
	"holdfast/internal/hosts/kube/survey"
)

// ErrNothing means that no node is to be replaced.
var ErrNothing = errors.New("no node is to be replaced")

// Plan is what a run would do.
type Plan struct {
	Nodes []NodePlan `json:"nodes"` // in the order of replacement
	// Room is the number of other nodes that can take pods.
	Room int `json:"room"`
	// Problems are the reasons for which the run is refused.
	Problems []string `json:"problems"`
	// Notes are facts to know before the run.
	Notes []string `json:"notes"`
}

// NodePlan is one node of a plan.
type NodePlan struct {
	Name    string    `json:"name"`
	Created time.Time `json:"created"`
	Kernel  string    `json:"kernel"`
	Why     []string  `json:"why"`   // the limits that it exceeds
	Phase   Phase     `json:"phase"` // reached in an earlier run; "": none
	Pods    []PodPlan `json:"pods"`
	Surges  []Surge   `json:"surges"` // without Config.Surge: none
}

// PodPlan is one pod.
type PodPlan struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Treatment Treatment `json:"treatment"`
	Why       string    `json:"why,omitempty"`
	Budget    string    `json:"budget,omitempty"` // a budget that now allows no eviction of it
}

// Count is how many of the node's pods get the treatment.
func (n NodePlan) Count(t Treatment) int {
	sum := 0
	for _, p := range n.Pods {
		if p.Treatment == t {
			sum++
		}
	}
	return sum
}

// candidate is a node that may be chosen.
type candidate struct {
	node kube.Node
	mark *Mark
	why  []string
}

// choose selects the nodes to replace, worst first: those of the earlier run if
// it is resumed, otherwise those over a limit.
func (r *Runner) choose(ctx context.Context) (chosen []candidate, all []kube.Node, err error) {
	if all, err = r.client.Nodes(ctx, ""); err != nil {
		return nil, nil, err
	}
	if r.conf.Resume {
		chosen, err = marked(all)
		return chosen, all, err
	}
	selected, err := r.client.Nodes(ctx, r.conf.Selector)
	if err != nil {
		return nil, nil, err
	}
	if left, err := marked(all); err != nil || len(left) > 0 {
		return nil, nil, errors.Join(err, unfinished(left))
	}
	var records map[string]*ranking.Record
	if len(r.conf.Limits) > 0 {
		records, err = survey.Records(ctx, r.client, r.conf.Namespace)
		if err != nil && !errors.Is(err, holdfast.ErrNotFound) {
			return nil, nil, fmt.Errorf("reading the agents' records: %w", err)
		}
	}
	for _, n := range selected {
		if m, err := MarkOf(n); err == nil && m != nil && m.over() && n.Spec.Unschedulable {
			continue // it was replaced, and is still listed
		}
		c := candidate{node: n}
		if len(r.conf.Limits) > 0 {
			if c.why = r.conf.Limits.Over(time.Since(n.Meta.Created), records[n.Meta.Name]); len(c.why) == 0 {
				continue
			}
		}
		chosen = append(chosen, c)
	}
	sort.SliceStable(chosen, func(i, j int) bool {
		a, b := &chosen[i], &chosen[j]
		return cmp.Or(len(b.why)-len(a.why), a.node.Meta.Created.Compare(b.node.Meta.Created)) < 0
	})
	return chosen, all, nil
}

// marked returns the nodes of an earlier run that has not ended.
func marked(all []kube.Node) ([]candidate, error) {
	var list []candidate
	for _, n := range all {
		switch m, err := MarkOf(n); {
		case err != nil:
			return nil, err
		case m != nil && !m.over():
			list = append(list, candidate{node: n, mark: m})
		}
	}
	sort.SliceStable(list, func(i, j int) bool { return list[j].mark.Phase.rank() < list[i].mark.Phase.rank() }) // nearly finished nodes first
	return list, nil
}

func unfinished(left []candidate) error {
	if len(left) == 0 {
		return nil
	}
	var names []string
	for _, c := range left {
		names = append(names, fmt.Sprintf("%s (%s)", c.node.Meta.Name, c.mark.Phase))
	}
	return holdfast.WithHint(fmt.Errorf("an earlier run has not ended or is still running: %s", strings.Join(names, ", ")),
		"--resume continues it, --abandon uncordons what it has not drained")
}

// Plan reads the cluster and returns what Run would do. It changes nothing.
func (r *Runner) Plan(ctx context.Context) (Plan, error) {
	chosen, all, err := r.choose(ctx)
	if err != nil {
		return Plan{}, err
	}
	return r.plan(ctx, chosen, all)
}

func (r *Runner) plan(ctx context.Context, chosen []candidate, all []kube.Node) (Plan, error) {
	p := Plan{Nodes: []NodePlan{}, Problems: []string{}, Notes: []string{}, Room: room(all, chosen)}
	if len(chosen) == 0 {
		return p, ErrNothing
	}
	budgets, err := r.client.Budgets(ctx)
	if err != nil {
		return p, err
	}
	for _, c := range chosen {
		n, err := r.planNode(ctx, c, budgets)
		if err != nil {
			return p, err
		}
		p.Nodes = append(p.Nodes, n)
		for _, pod := range n.Pods {
			if pod.Treatment == Refuse {
				p.Problems = append(p.Problems, fmt.Sprintf("%s: pod %s/%s: %s", n.Name, pod.Namespace, pod.Name, pod.Why))
			}
		}
	}
	if p.Room == 0 && len(r.conf.Provision) == 0 {
		p.Problems = append(p.Problems, "no other node takes pods: all nodes that do are to be replaced")
	}
	if len(r.conf.Command) == 0 {
		p.Notes = append(p.Notes, "no command to delete machines is given: the nodes stay, drained and cordoned")
	}
	return p, nil
}

func (r *Runner) planNode(ctx context.Context, c candidate, budgets []kube.Budget) (NodePlan, error) {
	n := NodePlan{Name: c.node.Meta.Name, Created: c.node.Meta.Created, Kernel: c.node.Status.Info.Kernel, Why: append([]string{}, c.why...), Pods: []PodPlan{}, Surges: []Surge{}}
	if c.mark != nil {
		n.Phase = c.mark.Phase
	}
	pods, err := r.drain.Pods(ctx, n.Name)
	if err != nil {
		return n, err
	}
	var moving []kube.Pod
	for _, t := range pods {
		if t.Treatment == Evict {
			moving = append(moving, t.Pod)
		}
		p := PodPlan{Namespace: t.Pod.Meta.Namespace, Name: t.Pod.Meta.Name, Treatment: t.Treatment, Why: t.Why}
		if t.Treatment == Evict && !t.Pod.Finished() {
			p.Budget = exhausted(budgets, t.Pod)
		}
		n.Pods = append(n.Pods, p)
	}
	if r.conf.Surge {
		works := owned(moving)
		if err := r.surges(ctx, works); err != nil {
			return n, err
		}
		for _, w := range works {
			n.Surges = append(n.Surges, w.surge)
		}
	}
	return n, nil
}

// exhausted returns the name of a budget that now allows no eviction of the pod,
// or "".
func exhausted(budgets []kube.Budget, p kube.Pod) string {
	for _, b := range budgets {
		if b.Meta.Namespace == p.Meta.Namespace && b.Status.Allowed <= 0 && b.Spec.Selector.Chooses(p.Meta.Labels) {
			return b.Meta.Name
		}
	}
	return ""
}

// room counts the nodes that take pods and are not chosen.
func room(all []kube.Node, chosen []candidate) int {
	n := 0
	for _, x := range all {
		mine := slices.ContainsFunc(chosen, func(c candidate) bool { return c.node.Meta.Name == x.Meta.Name })
		if !mine && x.Ready() && !x.Spec.Unschedulable {
			n++
		}
	}
	return n
}
