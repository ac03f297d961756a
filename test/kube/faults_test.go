package kube_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/hosts/doctor/ranking"
	"holdfast/internal/hosts/kube"
	"holdfast/internal/hosts/kube/node"
	"holdfast/internal/hosts/kube/replace"
	"holdfast/test/kube/kubetest"
)

// tries returns the maximum number of attempts of a client in a period. Its pauses double
// from one second to half a minute, with jitter down to the half.
func tries(over time.Duration) int {
	n := 1
	for at, pause := time.Duration(0), time.Second; ; n++ {
		if at += pause / 2; at > over {
			return n
		}
		pause = min(2*pause, 30*time.Second)
	}
}

// trouble is a fault of an API server, as the agent sees it.
type trouble struct {
	name  string
	fault func(*http.Request) kubetest.Fault
	// each is the maximum number of requests of one attempt. After a permanent refusal the
	// agent continues with its other requests.
	each    int
	applied bool // the API server executes the request
}

func all(f kubetest.Fault) func(*http.Request) kubetest.Fault {
	return func(*http.Request) kubetest.Fault { return f }
}

func troubles() []trouble {
	return []trouble{
		{name: "gone", fault: all(kubetest.Fault{Gone: true}), each: 1},
		{name: "silent", fault: all(kubetest.Fault{Silent: true}), each: 1},
		{name: "overloaded", fault: all(kubetest.Fault{Code: http.StatusTooManyRequests, Reason: "TooManyRequests", Retry: 3}), each: 1},
		{name: "unavailable", fault: all(kubetest.Fault{Code: http.StatusServiceUnavailable, Reason: "ServiceUnavailable"}), each: 1},
		{name: "expired", fault: all(kubetest.Fault{Code: http.StatusGone, Reason: "Expired"}), each: 4},
		{name: "conflict", each: 5, fault: func(r *http.Request) kubetest.Fault {
			if r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/status") {
				return kubetest.Fault{Code: http.StatusConflict, Reason: "Conflict"}
			}
			return kubetest.Fault{}
		}},
		{name: "answers-lost", fault: all(kubetest.Fault{Lost: true}), each: 1, applied: true},
	}
}

// conditions returns Holdfast's conditions of a node, by type, and whether the node is ready.
func conditions(t *testing.T, s *kubetest.Server, name string) map[string]string {
	t.Helper()
	n, err := s.Client().Node(context.Background(), name) // also at a test's end
	if err != nil {
		t.Fatal(err)
	}
	m := make(map[string]string)
	for _, c := range n.Status.Conditions {
		m[c.Type] = c.Status
	}
	return m
}

// During each kind of fault an agent backs off and reports nothing false. After the fault it
// reports the current state.
func TestReporterThroughTroubles(t *testing.T) {
	s := cluster(t)
	namespace(t, s)
	for _, x := range troubles() {
		s.Node(t, x.name, nil)
	}
	var wg sync.WaitGroup // t.Parallel would run only as many as there are CPUs
	for _, x := range troubles() {
		wg.Go(func() { t.Run(x.name, func(t *testing.T) { throughTrouble(t, s, x) }) })
	}
	wg.Wait()
}

func namespace(t *testing.T, s *kubetest.Server) {
	t.Helper()
	err := s.Do(t.Context(), http.MethodPost, "/api/v1/namespaces", kubetest.Object{"metadata": kubetest.Object{"name": "holdfast"}}, nil)
	if err != nil && kube.Code(err) != http.StatusConflict { // another test has created it
		t.Fatal(err)
	}
}

// reporter runs a Reporter until the test's end.
func reporter(t *testing.T, c *kube.Client, conf node.Config) *node.Reporter {
	t.Helper()
	conf.Namespace = "holdfast"
	conf.Record = func() *ranking.Record { return &ranking.Record{Facts: map[string]float64{"memcg.dying": 5}} }
	r := node.New(c, conf, nil, quiet())
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return r
}

func throughTrouble(t *testing.T, s *kubetest.Server, x trouble) {
	p := s.Proxy(t)
	r := reporter(t, p.Client(t, kube.Options{Limit: time.Second}), node.Config{Node: x.name})
	r.Found(nil)
	kubetest.Await(t, "all is well", func() bool { return conditions(t, s, x.name)[node.MemcgLeak] == "False" })
	p.Break(x.fault)
	// Findings change continuously, which must not cause more requests.
	sick := []node.Finding{{Rule: "dying-cgroups", Severity: "critical", Title: "dying"}, {Rule: "fadvise-storm", Severity: "warning", Title: "storm"}}
	var first []kubetest.Request
	begin := time.Now()
	for i := 0; ; i++ {
		if i%2 == 0 {
			r.Found(sick)
		} else {
			r.Found(sick[:1])
		}
		if got := p.Seen(begin); len(got) > 0 && first == nil {
			first = got
		}
		if first != nil && time.Since(first[0].At) > 8*time.Second {
			break
		}
		if time.Since(begin) > time.Minute {
			t.Fatal("the agent sent no request in a minute")
		}
		time.Sleep(20 * time.Millisecond)
	}
	over := time.Since(first[0].At)
	seen := p.Seen(begin)
	if most := tries(over) * x.each; len(seen) > most {
		t.Errorf("%d requests in %v, at most %d are allowed: %+v", len(seen), over, most, seen)
	}
	var last time.Time
	for _, q := range seen {
		if wait := time.Duration(q.Fault.Retry) * time.Second; wait > 0 && !last.IsZero() && q.At.Sub(last) < wait {
			t.Errorf("%s %s came %v after an answer that asked for %v", q.Method, q.Path, q.At.Sub(last), wait)
		}
		last = q.At
	}
	if c := conditions(t, s, x.name); !x.applied && (c[node.MemcgLeak] != "False" || c["Ready"] != "True") {
		t.Errorf("conditions meanwhile: %v", c)
	}
	r.Found(sick[:1])
	p.Break(nil)
	kubetest.Await(t, "what is so by then is said", func() bool {
		c := conditions(t, s, x.name)
		return c[node.MemcgLeak] == "True" && c[node.KernelContention] == "False" && c[node.SlowHost] == "False" && c["Ready"] == "True"
	})
	kubetest.Await(t, "each event is told once", func() bool { return events(t, s, x.name)["DyingCgroups"] > 0 })
	for reason, n := range events(t, s, x.name) {
		if n != 1 {
			t.Errorf("%s was told %d times", reason, n)
		}
	}
}

// events counts the events of a node, by reason.
func events(t *testing.T, s *kubetest.Server, about string) map[string]int {
	t.Helper()
	var list struct {
		Items []struct {
			Reason string         `json:"reason"`
			About  kube.Reference `json:"involvedObject"`
		} `json:"items"`
	}
	s.Must(t, http.MethodGet, "/api/v1/namespaces/default/events", nil, &list)
	n := make(map[string]int)
	for _, e := range list.Items {
		if e.About.Name == about {
			n[e.Reason]++
		}
	}
	return n
}

// A recreated node, or one that lost its conditions, gets them again. The findings of an
// earlier agent stay until the doctor has examined twice.
func TestReporterMendsItsNode(t *testing.T) {
	s := cluster(t)
	namespace(t, s)
	s.Node(t, "mine", nil)
	s.Must(t, http.MethodPatch, "/api/v1/nodes/mine/status", kubetest.Object{"status": kubetest.Object{"conditions": []kubetest.Object{
		{"type": "Ready", "status": "True"}, {"type": node.MemcgLeak, "status": "True", "reason": "DyingCgroups"}, {"type": "Other", "status": "True"}}}}, nil)
	r := reporter(t, s.Client(), node.Config{Node: "mine", Renew: 200 * time.Millisecond})
	owner := func() string {
		l, err := s.Client().Leases(t.Context(), "holdfast")
		if err != nil || len(l) != 1 || len(l[0].Meta.Owners) != 1 {
			return ""
		}
		return l[0].Meta.Owners[0].UID
	}
	kubetest.Await(t, "the lease is there", func() bool { return owner() != "" })
	if c := conditions(t, s, "mine"); len(c) != 3 || c[node.MemcgLeak] != "True" {
		t.Errorf("before anything is known: %v", c)
	}
	r.Found(nil)
	kubetest.Await(t, "the other conditions are set", func() bool { return conditions(t, s, "mine")[node.SlowHost] == "False" })
	if c := conditions(t, s, "mine"); c[node.MemcgLeak] != "True" || c["Other"] != "True" {
		t.Errorf("after the first look: %v", c)
	}
	was := owner()
	s.Must(t, http.MethodDelete, "/api/v1/nodes/mine", nil, nil)
	s.Node(t, "mine", nil)
	kubetest.Await(t, "the new node has conditions, and the lease goes with it", func() bool {
		return conditions(t, s, "mine")[node.SlowHost] == "False" && owner() != "" && owner() != was
	})
}

// An agent that starts without an API server waits for it.
func TestKubernetesAgentStartsWithoutAServer(t *testing.T) {
	s := cluster(t)
	namespace(t, s)
	s.Node(t, "mine", nil)
	u := newUser(t, s)
	p := s.Proxy(t)
	p.Break(all(kubetest.Fault{Gone: true}))
	begin := time.Now()
	dir := t.TempDir()
	config := filepath.Join(dir, "holdfast.yaml")
	if err := os.WriteFile(config, []byte("doctor: {every: 1s, burst: 0s}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	u.start("agent", "--kubernetes", "--config", config, "--kubeconfig", p.Kubeconfig(t), "--namespace", "holdfast", "--node", "mine", "--api", "none",
		"--data-dir", filepath.Join(dir, "data"), "--run-dir", filepath.Join(dir, "run"), "--cri-socket", filepath.Join(dir, "none.sock"))
	kubetest.Await(t, "it has tried three times", func() bool { return len(p.Seen(begin)) >= 3 })
	seen := p.Seen(begin)
	// Over HTTP/1 the library itself retries a GET once after a closed connection.
	if most := 2 * tries(time.Since(seen[0].At)); len(seen) > most {
		t.Errorf("%d requests in %v, at most %d are allowed", len(seen), time.Since(seen[0].At), most)
	}
	p.Break(nil)
	kubetest.Await(t, "the node has conditions", func() bool { return conditions(t, s, "mine")[node.SlowHost] != "" })
}

// Each request of a run fails at first, each in a different way. The run still does
// everything.
func TestReplaceThroughTroubles(t *testing.T) {
	s := cluster(t)
	nodes(t, s)
	s.Hands(t)
	web(t, s)
	p := s.Proxy(t)
	ways := []kubetest.Fault{
		{Gone: true},
		{Code: http.StatusTooManyRequests, Reason: "TooManyRequests", Retry: 1},
		{Lost: true},
		{Code: http.StatusServiceUnavailable, Reason: "ServiceUnavailable"},
		{Code: http.StatusInternalServerError, Reason: "InternalError"},
	}
	conf := settings()
	conf.Command = []string{"true"}
	conf.Surge = true
	r, err := replace.New(p.Client(t, kube.Options{}), conf)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := r.Plan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	asked := make(map[string]int)
	p.Break(func(q *http.Request) kubetest.Fault {
		what := q.Method + " " + q.URL.Path
		asked[what]++
		n := asked[what]
		switch {
		case q.Method != http.MethodGet && n == 2: // the third is the one after the conflict
			return kubetest.Fault{Code: http.StatusConflict, Reason: "Conflict"}
		case n == 1 || q.Method != http.MethodGet && n == 4:
			return ways[(len(asked)+n)%len(ways)]
		case q.Method == http.MethodGet && n == 2 && strings.HasSuffix(q.URL.Path, "/pods"):
			return kubetest.Fault{Code: http.StatusGone, Reason: "Expired"} // the list is restarted
		}
		return kubetest.Fault{}
	})
	var mu sync.Mutex
	var steps []string
	rep, err := r.Run(t.Context(), plan, func(x replace.Step) {
		mu.Lock()
		defer mu.Unlock()
		steps = append(steps, x.Node+": "+x.What)
	})
	if err != nil || len(rep.Nodes) != 2 || len(rep.Left) != 0 {
		t.Fatalf("report %+v, %v\n%s", rep, err, strings.Join(steps, "\n"))
	}
	kubetest.Await(t, "the surplus pod of the surge is gone", func() bool {
		on := s.ReadyPods(t, "default", "web")
		if on["old-1"]+on["old-2"] != 0 || sum(on) < 6 {
			t.Fatalf("ready pods by node: %v", on)
		}
		return sum(on) == 6
	})
	for _, name := range []string{"old-1", "old-2"} {
		if n, m := mark(t, s, name); m == nil || m.Phase != replace.Done || !n.Spec.Unschedulable {
			t.Errorf("%s at the end: %+v", name, m)
		}
	}
	if len(asked) < 10 || !slices.ContainsFunc(steps, func(s string) bool { return strings.Contains(s, "trying again") }) {
		t.Errorf("only few requests failed: %d kinds of requests\n%s", len(asked), strings.Join(steps, "\n"))
	}
}

// While the API server is overloaded, all evictions of a drain back off together. Evictions
// that a budget refuses are retried independently.
func TestReplaceLeavesABusyServerAlone(t *testing.T) {
	s := cluster(t)
	nodes(t, s)
	h := s.Hands(t)
	web(t, s)
	p := s.Proxy(t)
	conf := settings()
	r, err := replace.New(p.Client(t, kube.Options{}), conf)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := r.Plan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	evictions := 0
	p.Break(func(q *http.Request) kubetest.Fault {
		if strings.HasSuffix(q.URL.Path, "/eviction") {
			evictions++
			return kubetest.Fault{Code: http.StatusTooManyRequests, Reason: "TooManyRequests", Retry: 1}
		}
		return kubetest.Fault{}
	})
	ended := make(chan error, 1)
	begin := time.Now()
	go func() {
		_, err := r.Run(t.Context(), plan, nil)
		ended <- err
	}()
	perPod := make(map[string][]time.Time)
	kubetest.Await(t, "an eviction is asked for a third time", func() bool {
		clear(perPod)
		most := 0
		for _, q := range p.Seen(begin) {
			if strings.HasSuffix(q.Path, "/eviction") {
				perPod[q.Path] = append(perPod[q.Path], q.At)
				most = max(most, len(perPod[q.Path]))
			}
		}
		return most >= 3
	})
	for path, at := range perPod {
		for i := range at[1:] {
			if at[i+1].Sub(at[i]) < time.Second {
				t.Errorf("%s came %v after an answer that asked for a second", path, at[i+1].Sub(at[i]))
			}
		}
		if over := at[len(at)-1].Sub(at[0]); len(at) > tries(over)+1 {
			t.Errorf("%s came %d times in %v", path, len(at), over)
		}
	}
	p.Break(nil)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if on := s.ReadyPods(t, "default", "web"); on["old-1"]+on["old-2"] != 0 {
		t.Errorf("ready pods by node: %v, placed on %v", on, h.Placed("web"))
	}
}
