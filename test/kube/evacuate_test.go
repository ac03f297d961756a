package kube_test

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"holdfast/internal/hosts/kube"
	"holdfast/internal/hosts/kube/evacuate"
	"holdfast/test/kube/kubetest"
)

// hand kills for an Evacuator: it records the killed pods, and their state on the API server at that time.
type hand struct {
	s       *kubetest.Server
	node    string // "": mine
	mu      sync.Mutex
	at      time.Time // of the first call
	killed  []string  // names
	unasked []string
}

func (h *hand) Kill(ctx context.Context, uids []string) ([]string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.at.IsZero() {
		h.at = time.Now()
	}
	pods, err := h.s.Client().PodsOn(ctx, cmp.Or(h.node, "mine"))
	if err != nil {
		return nil, err
	}
	for _, p := range pods {
		if slices.Contains(uids, p.Meta.UID) {
			h.killed = append(h.killed, p.Meta.Name)
			if p.Meta.Deleted == nil {
				h.unasked = append(h.unasked, p.Meta.Name)
			}
		}
	}
	return uids, nil
}

// evacuator runs an Evacuator with an agent's rights, until the test ends.
func evacuator(t *testing.T, agent *kube.Client, k evacuate.Killer, conf evacuate.Config, m *evacuate.Metrics) *evacuate.Evacuator {
	t.Helper()
	e := evacuate.New(agent, k, conf, m, quiet())
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- e.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return e
}

// going is the mark of a node.
func going(t *testing.T, s *kubetest.Server, name string) (taint string, cordoned bool) {
	t.Helper()
	n, err := s.Client().Node(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range n.Spec.Taints {
		if x.Key == evacuate.Taint {
			taint = x.Value
		}
	}
	return taint, n.Spec.Unschedulable
}

// endings ends deleted pods of a node, except those that a test names.
func endings(t *testing.T, s *kubetest.Server, node string, stubborn ...string) {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for kube.Sleep(ctx, 100*time.Millisecond) == nil {
			pods, _ := s.Client().PodsOn(ctx, node) // the next round retries
			for _, p := range pods {
				if p.Meta.Deleted != nil && !slices.Contains(stubborn, p.Meta.Name) {
					_ = s.Client().DeletePod(ctx, p.Meta, 0)
				}
			}
		}
	}()
	t.Cleanup(func() { stop(); <-done })
}

func TestEvacuate(t *testing.T) {
	s := cluster(t)
	apply(t, s)
	s.Node(t, "mine", nil)
	s.Node(t, "other", nil)
	agent := agentOn(t, s, "mine", nil)
	list := call{http.MethodGet, "/api/v1/pods?fieldSelector=spec.nodeName%3Dmine", "", nil}
	t.Cleanup(func() { lost(t, agent, list) })
	applyComponent(t, s, "preemption")
	kubetest.Await(t, "the rights hold", func() bool { return agent.Raw(t.Context(), list.method, list.path, "", nil, nil) == nil })
	// The pod of the agent itself belongs to a DaemonSet.
	s.Must(t, http.MethodPatch, "/api/v1/namespaces/holdfast/pods/agent-mine", kubetest.Object{"metadata": kubetest.Object{"ownerReferences": []kubetest.Object{
		{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "holdfast-agent", "uid": "x", "controller": true}}}}, nil)
	pod := func(name string, grace int, meta kubetest.Object) {
		spec := kubetest.PodSpec()
		spec["nodeName"], spec["terminationGracePeriodSeconds"] = "mine", grace
		meta["name"] = name
		s.Must(t, http.MethodPost, "/api/v1/namespaces/default/pods", kubetest.Object{"metadata": meta, "spec": spec}, nil)
	}
	pod("short", 2, kubetest.Object{})
	pod("long", 60, kubetest.Object{})
	pod("stubborn", 1, kubetest.Object{})
	pod("db-0", 1, kubetest.Object{"labels": kubetest.Object{"app": "db"}})
	pod("mirror", 1, kubetest.Object{"annotations": kubetest.Object{"kubernetes.io/config.mirror": "x"}})
	onNode(t, s, "other", "elsewhere", kubetest.Object{})
	s.Budget(t, "default", "db", "db", 1) // it allows no eviction, because no pod is ready
	s.Must(t, http.MethodPatch, "/api/v1/namespaces/default/pods/db-0/status", kubetest.Object{"status": kubetest.Object{"conditions": []kubetest.Object{{"type": "Ready", "status": "True"}}}}, nil)
	endings(t, s, "mine", "stubborn")

	registry := prometheus.NewRegistry()
	h := &hand{s: s}
	e := evacuator(t, agent, h, evacuate.Config{Node: "mine"}, evacuate.NewMetrics(registry))
	done := make(chan struct{})
	e.Tell(t.Context(), evacuate.Notice{Kind: evacuate.Terminate, Source: "test", Reason: "the machine goes", Deadline: time.Now().Add(8 * time.Second), Done: func(context.Context) error { close(done); return nil }})
	kubetest.Await(t, "the node is marked", func() bool { taint, cordoned := going(t, s, "mine"); return taint == "cordoned" && cordoned })
	kubetest.Await(t, "all is done", func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	})
	h.mu.Lock()
	if len(h.killed) != 1 || h.killed[0] != "stubborn" || len(h.unasked) != 0 {
		t.Errorf("killed %v, not asked before %v", h.killed, h.unasked)
	}
	h.mu.Unlock()
	pods, err := s.Client().PodsIn(t.Context(), "default")
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, p := range pods {
		left = append(left, p.Meta.Name)
	}
	slices.Sort(left)
	if fmt.Sprint(left) != "[elsewhere mirror]" {
		t.Errorf("left are %v", left)
	}
	if p, err := s.Client().Pod(t.Context(), "holdfast", "agent-mine"); err != nil || p.Meta.Deleted != nil {
		t.Errorf("the agent's own pod: %+v, %v", p.Meta, err)
	}
	want := `# HELP holdfast_kubernetes_evacuated_pods_total Pods of a leaving node, by how they ended (ended, short_grace, overrode, killed, left).
# TYPE holdfast_kubernetes_evacuated_pods_total counter
`
	for _, how := range []string{"ended", "killed", "left", "overrode", "short_grace"} {
		n := 1
		if how == "left" {
			n = 0
		}
		want += fmt.Sprintf("holdfast_kubernetes_evacuated_pods_total{how=%q} %d\n", how, n)
	}
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "holdfast_kubernetes_evacuated_pods_total"); err != nil {
		t.Error(err)
	}
	var events struct {
		Items []struct {
			Reason string `json:"reason"`
			About  struct {
				Name string `json:"name"`
			} `json:"involvedObject"`
		} `json:"items"`
	}
	said := func(reason, about string) bool {
		s.Must(t, http.MethodGet, "/api/v1/namespaces/default/events", nil, &events)
		for _, ev := range events.Items {
			if ev.Reason == reason && ev.About.Name == about {
				return true
			}
		}
		return false
	}
	kubetest.Await(t, "it is said what was not as it should be", func() bool {
		return said("HoldfastBudgetOverridden", "db-0") && said("HoldfastGraceShortened", "long") && said("HoldfastEvacuated", "mine")
	})
	e.Tell(t.Context(), evacuate.Notice{Kind: evacuate.Withdrawn, Source: "test"})
	kubetest.Await(t, "the node takes pods again", func() bool { taint, cordoned := going(t, s, "mine"); return taint == "" && !cordoned })
}

// A notice that is withdrawn ends the running evacuation: pods not yet deleted stay. A
// node that an operator had cordoned stays cordoned, and the mark of an agent that is gone
// does not stay.
func TestEvacuationIsWithdrawn(t *testing.T) {
	s := cluster(t)
	apply(t, s)
	s.Node(t, "mine", nil)
	agent := agentOn(t, s, "mine", nil)
	list := call{http.MethodGet, "/api/v1/pods?fieldSelector=spec.nodeName%3Dmine", "", nil}
	t.Cleanup(func() { lost(t, agent, list) })
	applyComponent(t, s, "preemption")
	kubetest.Await(t, "the rights hold", func() bool { return agent.Raw(t.Context(), list.method, list.path, "", nil, nil) == nil })
	onNode(t, s, "mine", "db-0", kubetest.Object{"labels": kubetest.Object{"app": "db"}})
	s.Budget(t, "default", "db", "db", 1)
	s.Must(t, http.MethodPatch, "/api/v1/namespaces/default/pods/db-0/status", kubetest.Object{"status": kubetest.Object{"conditions": []kubetest.Object{{"type": "Ready", "status": "True"}}}}, nil)
	h := &hand{s: s}
	e := evacuator(t, agent, h, evacuate.Config{Node: "mine"}, nil)
	e.Tell(t.Context(), evacuate.Notice{Kind: evacuate.Terminate, Source: "test", Deadline: time.Now().Add(time.Hour)})
	kubetest.Await(t, "the node is marked", func() bool { taint, _ := going(t, s, "mine"); return taint == "cordoned" })
	e.Tell(t.Context(), evacuate.Notice{Kind: evacuate.Withdrawn, Source: "test"})
	kubetest.Await(t, "the node takes pods again", func() bool { taint, cordoned := going(t, s, "mine"); return taint == "" && !cordoned })
	if p, err := s.Client().Pod(t.Context(), "default", "db-0"); err != nil || p.Meta.Deleted != nil || len(h.killed) != 0 {
		t.Errorf("the pod that waited for a budget: %+v, %v, killed %v", p.Meta, err, h.killed)
	}

	yes := true
	if _, err := s.Client().PatchNode(t.Context(), "mine", kube.NodePatch{Unschedulable: &yes}); err != nil {
		t.Fatal(err)
	}
	e.Tell(t.Context(), evacuate.Notice{Kind: evacuate.Rebalance, Source: "test"})
	kubetest.Await(t, "the node is marked", func() bool { taint, _ := going(t, s, "mine"); return taint == "was-cordoned" })
	evacuator(t, agent, h, evacuate.Config{Node: "mine", Leftover: 200 * time.Millisecond}, nil) // the next agent
	kubetest.Await(t, "the mark is gone", func() bool { taint, _ := going(t, s, "mine"); return taint == "" })
	if _, cordoned := going(t, s, "mine"); !cordoned {
		t.Error("a node that an operator had cordoned was uncordoned")
	}
}

// The API server fails in different ways: at the notice, between two pods, or after the last
// one. Nevertheless the node is marked, the pods are deleted in the order of their grace
// periods, a pod that does not end is killed, and no pod remains on the API server at the
// deadline.
func TestEvacuateThroughTroubles(t *testing.T) {
	s := cluster(t)
	var wg sync.WaitGroup // t.Parallel would run only as many as there are CPUs
	for _, x := range troubles() {
		if x.name == "conflict" {
			x.fault = func(r *http.Request) kubetest.Fault {
				if r.Method == http.MethodGet {
					return kubetest.Fault{}
				}
				return kubetest.Fault{Code: http.StatusConflict, Reason: "Conflict"}
			}
		}
		wg.Go(func() { t.Run(x.name, func(t *testing.T) { evacuateThroughTrouble(t, s, x) }) })
	}
	wg.Wait()
}

// many is a number of pods that exceeds the concurrent requests.
const many = 12

func evacuateThroughTrouble(t *testing.T, s *kubetest.Server, x trouble) {
	s.Node(t, x.name, nil)
	var names []string // the longest grace period first
	for i := range many {
		spec := kubetest.PodSpec()
		spec["nodeName"], spec["terminationGracePeriodSeconds"] = x.name, 100-i
		var pod kube.Pod
		s.Must(t, http.MethodPost, "/api/v1/namespaces/default/pods", kubetest.Object{"metadata": kubetest.Object{"name": fmt.Sprintf("%s-%d", x.name, i)}, "spec": spec}, &pod)
		names = append(names, pod.Meta.Name)
	}
	stubborn := names[many-1]
	endings(t, s, x.name, stubborn)

	// The evacuation keeps 3 s for its last requests. The trouble leaves 2 s of them for a busy host.
	const notice, trouble = 14 * time.Second, time.Second
	p, h := s.Proxy(t), &hand{s: s, node: x.name}
	var mu sync.Mutex
	var begin, first time.Time // of the notice, and of the first deletion
	var asked []string
	failed := map[string]bool{} // by the time of the fault
	p.Break(func(r *http.Request) kubetest.Fault {
		mu.Lock()
		defer mu.Unlock()
		name := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
		if r.Method == http.MethodDelete && !slices.Contains(asked, name) {
			if asked = append(asked, name); len(asked) == many/2 {
				first = time.Now()
			}
		}
		h.mu.Lock()
		killed := h.at
		h.mu.Unlock()
		for when, at := range map[string]time.Time{"at first": begin, "in the middle": first, "at last": killed} {
			if f := x.fault(r); f.Fails() && !at.IsZero() && time.Since(at) < trouble {
				failed[when] = true
				return f
			}
		}
		return kubetest.Fault{}
	})
	registry := prometheus.NewRegistry()
	e := evacuator(t, p.Client(t, kube.Options{}), h, evacuate.Config{Node: x.name}, evacuate.NewMetrics(registry))
	done := make(chan struct{})
	mu.Lock()
	begin = time.Now()
	mu.Unlock()
	e.Tell(t.Context(), evacuate.Notice{Kind: evacuate.Terminate, Source: "test", Deadline: time.Now().Add(notice), Done: func(context.Context) error { close(done); return nil }})
	kubetest.Await(t, "all is done", func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	})
	if taint, cordoned := going(t, s, x.name); taint != "cordoned" || !cordoned {
		t.Errorf("the node is marked %q, cordoned %v", taint, cordoned)
	}
	if left, err := s.Client().PodsOn(t.Context(), x.name); err != nil || len(left) > 0 {
		t.Errorf("%d pods are left: %v", len(left), err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.killed) != 1 || h.killed[0] != stubborn || len(h.unasked) > 0 {
		t.Errorf("killed are %v, of which %v had not been asked; %s does not end", h.killed, h.unasked, stubborn)
	}
	mu.Lock()
	defer mu.Unlock()
	for i, name := range asked {
		// Eight requests run at a time, so all but seven pods before this one were asked. A
		// request that is late may be overtaken by any number.
		if at := slices.Index(names, name); at > i+7 {
			t.Errorf("%s was asked as number %d: %v", name, i, asked)
		}
	}
	if len(asked) != many || len(failed) < 3 {
		t.Errorf("asked were %v; there was trouble %v", asked, failed)
	}
}
