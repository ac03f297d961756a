package experiment

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/store"
	"holdfast/test/memstore"
)

// A larger share moves ids to the treatment arm and none back, and two experiments divide
// the same ids independently.
func TestArm(t *testing.T) {
	const n = 20000
	small, large := Spec{Name: "a", Share: 10}, Spec{Name: "a", Share: 50}
	other := Spec{Name: "b", Share: 50}
	treated, both := 0, 0
	for i := range n {
		id := fmt.Sprint("session-", i)
		if small.Arm(id) == holdfast.Treatment {
			treated++
			if large.Arm(id) != holdfast.Treatment {
				t.Fatalf("%s left the treatment arm when its share grew", id)
			}
		}
		if large.Arm(id) == holdfast.Treatment && other.Arm(id) == holdfast.Treatment {
			both++
		}
	}
	for what, share := range map[string][2]float64{
		"treated": {float64(treated) / n, .1}, "treated by two experiments": {float64(both) / n, .25},
	} {
		if d := share[0] - share[1]; d < -.015 || d > .015 { // over four standard deviations
			t.Errorf("%s: %.3f, want about %.3f", what, share[0], share[1])
		}
	}
	if (Spec{Name: "a", Share: 100}).Arm("x") != holdfast.Treatment {
		t.Error("not all are treated with a share of 100 %")
	}
}

// draws simulates an experiment with one treated spin-up of ten, after which it is judged. It returns the number of treated spin-ups after which it is stopped, 0 for never.
func draws(r *rand.Rand, control, treatment float64, most int) int {
	groups := map[bool]*spinup.Group{false: {}, true: {}}
	for i := range most {
		treated, p := i%10 == 0, control
		if treated {
			p = treatment
		}
		g := groups[treated]
		g.Count++
		if r.Float64() < p {
			g.Failed++
		}
		if !treated {
			continue
		}
		for _, v := range judge(*groups[false], *groups[true]) {
			if v.Worse {
				return g.Count
			}
		}
	}
	return 0
}

// The stated error rate holds although the experiment is judged again and again, and a
// bad treatment is stopped soon.
func TestErrorRate(t *testing.T) {
	const runs = 200
	r := rand.New(rand.NewPCG(1, 2))
	stopped := 0
	for range runs {
		if draws(r, .05, .05, 2000) > 0 {
			stopped++
		}
	}
	if limit := int(errorRate * runs); stopped > limit {
		t.Errorf("%d of %d experiments without a difference were stopped, want at most %d", stopped, runs, limit)
	}
	for _, c := range []struct {
		control, treatment float64
		within             int // treated spin-ups
	}{{0, 1, 12}, {.01, .5, 40}, {.05, .25, 250}} {
		longest := 0
		for range 20 {
			n := draws(r, c.control, c.treatment, 10*c.within)
			if n == 0 {
				t.Errorf("%.2f instead of %.2f: not stopped after %d treated spin-ups", c.treatment, c.control, c.within)
				break
			}
			longest = max(longest, n)
		}
		t.Logf("%.2f instead of %.2f: stopped after %d treated spin-ups at most", c.treatment, c.control, longest)
	}
}

// fleet is two nodes with one store, whose spin-ups are the records.
type fleet struct {
	store   store.Store
	leases  []store.LeaseID
	nodes   []*Experiments
	records []spinup.Record
}

func newFleet(t *testing.T, specs ...Spec) *fleet {
	t.Helper()
	f := &fleet{store: memstore.New(1000)}
	for i := range 2 {
		node := holdfast.NodeID(fmt.Sprint("n", i+1))
		lease, _, err := f.store.Grant(t.Context(), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		f.leases = append(f.leases, lease)
		f.nodes = append(f.nodes, New(Config{Node: node, Specs: specs}, Deps{
			Store: f.store, Lease: func() store.LeaseID { return f.leases[i] }, Report: f.report,
			Metrics: prometheus.NewRegistry(), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		}))
	}
	return f
}

func (f *fleet) report(_ context.Context, q spinup.Question) (spinup.FleetReport, error) {
	return spinup.FleetReportOf([]spinup.NodeSketch{{Node: "n1", Sketch: spinup.NewSketch(f.records, q, spinup.DefaultRules())}}, q)
}

// spinUp records a spin-up of a session on a node, as the node's recorder does.
func (f *fleet) spinUp(node int, key holdfast.SessionKey, template string, outcome spinup.Outcome) {
	r := spinup.Record{Kind: spinup.ForSession, Job: string(key), Template: f.nodes[node].Template(key, template), Outcome: outcome}
	r.Arms = f.nodes[node].Arms(r)
	f.records = append(f.records, r)
}

// An experiment begins when its record is in the store, and ends on all nodes when one of
// them finds that the treatment fails.
func TestWorseTreatmentIsStopped(t *testing.T) {
	s := Spec{Name: "next", By: BySession, Template: "web", With: "web-next", Share: 50}
	f := newFleet(t, s)
	key := holdfast.SessionKey("k")
	for s.Arm(string(key)) != holdfast.Treatment {
		key += "k"
	}
	if got := f.nodes[0].Template(key, "web"); got != "web" {
		t.Errorf("before it begins, a session boots from %s", got)
	}
	for _, n := range f.nodes {
		if err := n.begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := n.Template(key, "web"); got != "web-next" {
			t.Errorf("a treated session boots from %s", got)
		}
		if got := n.Template(key, "db"); got != "db" {
			t.Errorf("another template: %s", got)
		}
	}
	if !f.nodes[0].turn(t.Context()) || f.nodes[1].turn(t.Context()) || !f.nodes[0].turn(t.Context()) {
		t.Error("not one node judges")
	}
	for i := range 200 {
		key := holdfast.SessionKey(fmt.Sprint("s", i))
		outcome := spinup.OK
		if s.Arm(string(key)) == holdfast.Treatment && i > 100 {
			outcome = spinup.Failed
		}
		f.spinUp(i%2, key, "web", outcome)
		if i == 100 {
			f.nodes[0].judgeAll(t.Context())
			if got := f.nodes[0].state("next"); got != holdfast.ExperimentRunning {
				t.Fatalf("without a failure it is %s", got)
			}
		}
	}
	f.nodes[0].judgeAll(t.Context())
	if err := f.nodes[1].begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, n := range f.nodes {
		x := n.List()[0]
		if x.State != holdfast.ExperimentStopped || x.Why == "" || x.Stopped.Before(x.Begun) {
			t.Errorf("node %d: %+v", i+1, x)
		}
		// Sessions that had the treatment go back to their template.
		if a, b := n.Template(key, "web"), n.Template(key, "web-next"); a != "web" || b != "web" {
			t.Errorf("node %d: after the stop a session boots from %s, or %s", i+1, a, b)
		}
		if arms := n.Arms(f.records[0]); arms != nil {
			t.Errorf("a spin-up after the stop has arms %v", arms)
		}
	}
}

// The other node judges once the lease of the first has ended.
func TestJudgeIsReplaced(t *testing.T) {
	f := newFleet(t, Spec{Name: "x", By: ByNode, Share: 50})
	if !f.nodes[0].turn(t.Context()) {
		t.Fatal("the first node does not judge")
	}
	if err := f.store.Revoke(t.Context(), f.leases[0]); err != nil {
		t.Fatal(err)
	}
	f.leases[0] = 0
	if f.nodes[0].turn(t.Context()) || !f.nodes[1].turn(t.Context()) {
		t.Error("the second node does not judge")
	}
}

// A stop by an operator is for good, and unknown names are errors.
func TestStop(t *testing.T) {
	f := newFleet(t, Spec{Name: "x", By: ByNode, Share: 50})
	n := f.nodes[1]
	if err := n.Stop(t.Context(), "x", "enough"); err != nil { // nothing was read before
		t.Fatal(err)
	}
	if err := n.Stop(t.Context(), "x", "again"); err != nil {
		t.Fatal(err)
	}
	if x := n.List()[0]; x.State != holdfast.ExperimentStopped || x.Why != "enough" || x.NodeArm != "" {
		t.Errorf("%+v", x)
	}
	if err := n.Stop(t.Context(), "y", ""); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("an unknown experiment: %v", err)
	}
	if _, err := n.Report(t.Context(), "y"); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("a report of an unknown experiment: %v", err)
	}
}
