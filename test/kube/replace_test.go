package kube_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/internal/hosts/kube"
	"holdfast/internal/hosts/kube/replace"
	"holdfast/test/kube/kubetest"
)

func settings() replace.Config {
	return replace.Config{
		Selector: "pool=old", MaxUnavailable: 1, Grace: -1, Namespace: "holdfast",
		DrainLimit: time.Minute, ReadyLimit: time.Minute, CommandLimit: time.Minute, Patience: time.Minute, Look: 100 * time.Millisecond,
	}
}

func newRunner(t *testing.T, s *kubetest.Server, c replace.Config) *replace.Runner {
	t.Helper()
	r, err := replace.New(s.Client(), c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// nodes creates two old and two new nodes.
func nodes(t *testing.T, s *kubetest.Server) {
	t.Helper()
	for _, n := range []string{"old-1", "old-2"} {
		s.Node(t, n, map[string]string{"pool": "old"})
	}
	for _, n := range []string{"new-1", "new-2"} {
		s.Node(t, n, map[string]string{"pool": "new"})
	}
}

// web runs six pods on all four nodes. Their budget requires four ready pods.
func web(t *testing.T, s *kubetest.Server) {
	t.Helper()
	s.ReplicaSet(t, "default", "web", 6, kubetest.PodSpec())
	s.Budget(t, "default", "web", "web", 4)
	kubetest.Await(t, "six pods are ready, on all nodes", func() bool {
		on := s.ReadyPods(t, "default", "web")
		return sum(on) == 6 && len(on) == 4
	})
}

func sum(on map[string]int) int {
	n := 0
	for _, k := range on {
		n += k
	}
	return n
}

// onNode creates a pod without a ReplicaSet on a node.
func onNode(t *testing.T, s *kubetest.Server, node, name string, meta kubetest.Object) {
	t.Helper()
	spec := kubetest.PodSpec()
	spec["nodeName"] = node
	meta["name"] = name
	s.Must(t, http.MethodPost, "/api/v1/namespaces/default/pods", kubetest.Object{"metadata": meta, "spec": spec}, nil)
}

func mark(t *testing.T, s *kubetest.Server, name string) (kube.Node, *replace.Mark) {
	t.Helper()
	n, err := s.Client().Node(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	m, err := replace.MarkOf(n)
	if err != nil {
		t.Fatal(err)
	}
	return n, m
}

func TestReplace(t *testing.T) {
	s := cluster(t)
	nodes(t, s)
	h := s.Hands(t)
	web(t, s)
	var agents kube.Pod
	s.Must(t, http.MethodPost, "/apis/apps/v1/namespaces/default/daemonsets", kubetest.Object{
		"metadata": kubetest.Object{"name": "agents"},
		"spec": kubetest.Object{"selector": kubetest.Object{"matchLabels": kubetest.Object{"app": "agents"}},
			"template": kubetest.Object{"metadata": kubetest.Object{"labels": kubetest.Object{"app": "agents"}}, "spec": kubetest.PodSpec()}},
	}, &agents)
	onNode(t, s, "old-1", "agents-1", kubetest.Object{"ownerReferences": []kubetest.Object{
		{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agents", "uid": agents.Meta.UID, "controller": true}}})
	onNode(t, s, "old-2", "mirror", kubetest.Object{"annotations": kubetest.Object{"kubernetes.io/config.mirror": "x"}})

	dir := t.TempDir()
	conf := settings()
	conf.Command = []string{"touch", filepath.Join(dir, "{node}")}
	r := newRunner(t, s, conf)
	p, err := r.Plan(t.Context())
	if err != nil || len(p.Problems) > 0 || len(p.Nodes) != 2 || p.Room != 2 {
		t.Fatalf("plan: %+v, %v", p, err)
	}
	for _, n := range p.Nodes {
		if n.Count(replace.Leave) != 1 || n.Count(replace.Refuse) != 0 {
			t.Errorf("plan of %s: %+v", n.Name, n.Pods)
		}
	}
	before := len(h.Placed("web"))
	var steps []string
	rep, err := r.Run(t.Context(), p, func(s replace.Step) { steps = append(steps, s.Node+": "+s.What) })
	if err != nil {
		t.Fatalf("%v\n%s", err, strings.Join(steps, "\n"))
	}
	if late := h.Placed("web")[before:]; slices.ContainsFunc(late, func(n string) bool { return strings.HasPrefix(n, "old-") }) {
		t.Errorf("pods were placed on nodes that were also to be replaced: %v", late)
	}
	on := s.ReadyPods(t, "default", "web")
	if on["old-1"]+on["old-2"] != 0 || sum(on) != 6 {
		t.Errorf("ready pods by node: %v", on)
	}
	for _, name := range []string{"agents-1", "mirror"} {
		if p, err := s.Client().Pod(t.Context(), "default", name); err != nil || p.Meta.Deleted != nil {
			t.Errorf("pod %s should have been left: %v", name, err)
		}
	}
	moved := 0
	for _, n := range rep.Nodes {
		if _, err := os.Stat(filepath.Join(dir, n.Node)); err != nil {
			t.Errorf("the command for %s: %v", n.Node, err)
		}
		if x, m := mark(t, s, n.Node); !x.Spec.Unschedulable || m == nil || m.Phase != replace.Done {
			t.Errorf("%s at the end: %+v, %+v", n.Node, x.Spec, m)
		}
		for _, row := range n.Pods {
			moved++
			if row.New == nil || row.New.Node == row.Old.Node || row.New.Init == nil || row.New.Start == nil || time.Duration(*row.New.Init) != 2*time.Second || time.Duration(*row.New.Start) != 3*time.Second {
				t.Errorf("row %+v, new %+v", row, row.New)
			}
		}
	}
	if len(rep.Nodes) != 2 || moved < 2 {
		t.Errorf("%d nodes and %d pods in the report", len(rep.Nodes), moved)
	}
	if _, err := r.Plan(t.Context()); !errors.Is(err, replace.ErrNothing) {
		t.Errorf("a plan when all is done: %v", err)
	}
}

// If pods do not become ready, a run stops and uncordons the nodes that still have their
// pods.
func TestReplaceStopsWhenPodsDoNotComeUp(t *testing.T) {
	s := cluster(t)
	nodes(t, s)
	h := s.Hands(t)
	web(t, s)
	h.Hold(true)
	conf := settings()
	conf.ReadyLimit = time.Second
	conf.DrainLimit = 2 * time.Second // the budget allows only two evictions
	r := newRunner(t, s, conf)
	p, err := r.Plan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rep, err := r.Run(t.Context(), p, nil)
	if !errors.Is(err, replace.ErrHealth) && !strings.Contains(err.Error(), "not empty within") {
		t.Errorf("the run ended with %v", err)
	}
	if ready := sum(s.ReadyPods(t, "default", "web")); ready < 4 {
		t.Errorf("%d pods are ready, and the budget wants 4", ready)
	}
	if len(rep.Uncordoned) != 2 || len(rep.Left) != 0 || rep.Stopped == "" {
		t.Errorf("report %+v", rep)
	}
	for _, name := range []string{"old-1", "old-2"} {
		if n, m := mark(t, s, name); n.Spec.Unschedulable || m != nil {
			t.Errorf("%s is left cordoned: %+v %+v", name, n.Spec, m)
		}
	}
}

// A run also stops if another node becomes unhealthy.
func TestReplaceStopsWhenANodeGoesBad(t *testing.T) {
	s := cluster(t)
	nodes(t, s)
	s.Hands(t)
	conf := settings()
	marker := filepath.Join(t.TempDir(), "began")
	conf.Command = []string{"touch", marker}
	r := newRunner(t, s, conf)
	p, err := r.Plan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.Run(t.Context(), p, func(x replace.Step) {
		if strings.HasPrefix(x.What, "running ") {
			s.SetReady(t, "new-1", false)
		}
	})
	if !errors.Is(err, replace.ErrHealth) || !strings.Contains(err.Error(), "new-1") {
		t.Errorf("the run ended with %v", err)
	}
	done, free := 0, 0
	for _, name := range []string{"old-1", "old-2"} {
		switch n, m := mark(t, s, name); {
		case m != nil && m.Phase == replace.Done && n.Spec.Unschedulable:
			done++
		case m == nil && !n.Spec.Unschedulable:
			free++
		}
	}
	if done != 1 || free != 1 {
		t.Errorf("%d nodes are replaced and %d free, want one each", done, free)
	}
}

func TestReplaceRefuses(t *testing.T) {
	s := cluster(t)
	nodes(t, s)
	onNode(t, s, "old-1", "alone", kubetest.Object{})
	spec := kubetest.PodSpec()
	spec["nodeName"] = "old-2"
	spec["volumes"] = []kubetest.Object{{"name": "v", "emptyDir": kubetest.Object{}}}
	s.Must(t, http.MethodPost, "/api/v1/namespaces/default/pods", kubetest.Object{"metadata": kubetest.Object{"name": "local", "ownerReferences": []kubetest.Object{
		{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": "x", "controller": true}}}, "spec": spec}, nil)
	p, err := newRunner(t, s, settings()).Plan(t.Context())
	if err != nil || len(p.Problems) != 2 {
		t.Errorf("plan %+v, %v", p, err)
	}
	conf := settings()
	conf.Rules = replace.Rules{LocalData: true, Unmanaged: true}
	if p, err := newRunner(t, s, conf).Plan(t.Context()); err != nil || len(p.Problems) != 0 {
		t.Errorf("plan that allows the deletion of local data: %+v, %v", p, err)
	}
	conf.Selector = "pool"
	if p, err := newRunner(t, s, conf).Plan(t.Context()); err != nil || len(p.Problems) != 1 || p.Room != 0 {
		t.Errorf("plan of all nodes: %+v, %v", p, err)
	}
}
