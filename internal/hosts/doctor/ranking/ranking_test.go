package ranking

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"holdfast"
)

// node returns a record with spin-ups of the given median.
func node(i int, p50 float64, facts map[string]float64) Record {
	return Record{Node: holdfast.NodeID(fmt.Sprintf("n%03d", i)), Facts: facts, Spinups: Spinups{Count: 20, Slow: int(p50), P50: p50, P99: 2 * p50}}
}

// shop is a fleet in which old hosts have leaked control groups and are slow. It models
// Shopify's report, in which comparing hosts found the cause.
func shop(n, slow int, seed uint64) []Record {
	r := rand.New(rand.NewPCG(seed, 7))
	var all []Record
	for i := range n {
		p50, dying, uptime := 0.4+0.2*r.Float64(), 200+800*r.Float64(), 86400*(1+20*r.Float64())
		if i < slow {
			p50, dying, uptime = 6+6*r.Float64(), 40000+20000*r.Float64(), 86400*(60+40*r.Float64())
		}
		facts := map[string]float64{"memcg.dying": dying, "host.uptime": uptime, "host.cpus": 8}
		for k := range 28 { // without a relation to speed
			facts[fmt.Sprintf("noise.%02d", k)] = r.NormFloat64()
		}
		all = append(all, node(i, p50, facts))
	}
	return all
}

func TestOldHostsAreFound(t *testing.T) {
	for _, c := range []struct{ n, slow int }{{20, 8}, {60, 5}, {1000, 30}} {
		r := Rank(shop(c.n, c.slow, 3), ByP50)
		if r.Slow.Nodes != c.slow || r.Fast.Nodes != c.n-c.slow || !r.Enough {
			t.Errorf("%v: %+v slow, %+v fast, enough %v: %s", c, r.Slow, r.Fast, r.Enough, r.Verdict)
			continue
		}
		first := []string{r.Facts[0].Name, r.Facts[1].Name}
		slices.Sort(first)
		if first[0] != "host.uptime" || first[1] != "memcg.dying" || r.Facts[0].AUC != 1 || !r.Facts[1].Separates {
			t.Errorf("%v: %+v", c, r.Facts[:2])
		}
		for _, f := range r.Facts[2:] {
			if f.Separates {
				t.Errorf("%v: a random fact separates: %+v", c, f)
			}
		}
		if !slices.Equal(r.Same, []string{"host.cpus"}) {
			t.Errorf("same on all nodes: %q", r.Same)
		}
		for _, f := range r.Facts {
			if f.Name == "memcg.dying" && (f.Slow < 40000 || f.Fast > 1000) {
				t.Errorf("medians: %+v", f)
			}
		}
	}
}

// Three nodes show a difference, and the verdict says that it may be chance.
func TestTooFewNodes(t *testing.T) {
	r := Rank(shop(3, 1, 1), ByP50)
	if r.Enough || !strings.HasPrefix(r.Verdict, "too few nodes to say: with 1 slow and 2 fast ones") || len(r.Facts) != 30 {
		t.Errorf("%d facts: %s", len(r.Facts), r.Verdict)
	}
	for _, f := range r.Facts {
		if f.Separates {
			t.Errorf("%+v", f)
		}
	}
	// Twelve nodes suffice for one fact, but not for thirty.
	if r := Rank(shop(12, 6, 1), ByP50); r.Enough || r.Slow.Nodes != 6 || !strings.Contains(r.Verdict, "with 6 slow and 6 fast ones, the best of 30 facts") {
		t.Errorf("%+v: %s", r.Slow, r.Verdict)
	}
	if r := Rank(shop(14, 7, 1), ByP50); !r.Enough || !r.Facts[0].Separates {
		t.Errorf("%s", r.Verdict)
	}
	// With fewer facts fewer nodes suffice: 4 against 4 suffice for one fact.
	var eight []Record
	for i := range 8 {
		eight = append(eight, node(i, []float64{1, 10}[i%2], map[string]float64{"x": float64(i % 2 * 100)}))
	}
	if r := Rank(eight, ByP50); !r.Enough || !r.Facts[0].Separates || math.Abs(r.Facts[0].Chance-2./70) > 1e-9 {
		t.Errorf("%s: %+v", r.Verdict, r.Facts)
	}
}

func TestNothingToCompare(t *testing.T) {
	few := node(1, 9, nil)
	few.Spinups.Count = 4
	none := Record{Node: "none"}
	bad := node(2, math.NaN(), nil)
	for name, c := range map[string]struct {
		records []Record
		verdict string
		left    int
	}{
		"no nodes":             {nil, "0 of 0 nodes", 0},
		"one node":             {[]Record{node(0, 1, map[string]float64{"x": 1})}, "1 of 1 nodes", 0},
		"too few spin-ups":     {[]Record{node(0, 1, nil), few, none}, "1 of 3 nodes", 2},
		"no numbers":           {[]Record{node(0, 1, nil), bad}, "1 of 2 nodes", 1},
		"all alike":            {[]Record{node(0, 1, nil), node(1, 1.2, nil), node(3, 1, nil)}, "the nodes do not differ", 0},
		"all equal":            {[]Record{node(0, 1, nil), node(1, 1, nil)}, "the nodes do not differ", 0},
		"all at once":          {[]Record{node(0, 0, nil), node(1, 0, nil)}, "the nodes do not differ", 0},
		"no facts":             {[]Record{node(0, 1, nil), node(1, 9, nil)}, "the nodes have no fact that differs", 0},
		"facts only one has":   {[]Record{node(0, 1, map[string]float64{"a": 1}), node(1, 9, map[string]float64{"b": 1})}, "the nodes have no fact that differs", 0},
		"a fact that is equal": {[]Record{node(0, 1, map[string]float64{"a": 1}), node(1, 9, map[string]float64{"a": 1})}, "the nodes have no fact that differs", 0},
		"a fact of no number":  {[]Record{node(0, 1, map[string]float64{"a": 1}), node(1, 9, map[string]float64{"a": math.NaN()})}, "the nodes have no fact that differs", 0},
	} {
		r := Rank(c.records, ByP50)
		if !strings.HasPrefix(r.Verdict, c.verdict) || r.Enough || len(r.LeftOut) != c.left {
			t.Errorf("%s: %q, left out %v", name, r.Verdict, r.LeftOut)
		}
		if slices.ContainsFunc(r.Nodes, func(n Node) bool { return n.Slow }) && strings.Contains(r.Verdict, "do not differ") {
			t.Errorf("%s: slow nodes among equals: %v", name, r.Nodes)
		}
	}
}

// Kernels are compared, too, and a fact that some nodes lack is judged by the others.
func TestKernelsAndMissingFacts(t *testing.T) {
	var all []Record
	for i := range 24 {
		p50, facts := 1.0, map[string]float64{"n": float64(i)}
		if i%2 == 0 {
			facts["some"] = float64(i % 4)
		}
		x := node(i, p50, facts)
		x.Kernel = "6.1.0"
		if i < 12 {
			x = node(i, 5, facts)
			x.Kernel = "5.4.0"
		}
		all = append(all, x)
	}
	r := Rank(all, ByP50)
	found := false
	for _, f := range r.Facts {
		switch f.Name {
		case "kernel 5.4.0":
			found = f.AUC == 1 && f.Separates && f.Slow == 1 && f.Fast == 0
		case "some":
			if f.NSlow != 6 || f.NFast != 6 || f.Separates {
				t.Errorf("%+v", f)
			}
		}
	}
	if !found {
		t.Errorf("%+v", r.Facts)
	}
}

// Nodes are split by the share of slow spin-ups.
func TestBySlowShare(t *testing.T) {
	var all []Record
	for i := range 20 {
		x := node(i, 1, map[string]float64{"x": float64(i)})
		x.Spinups.Slow = i / 10 * 10
		all = append(all, x)
	}
	r := Rank(all, BySlow)
	if r.Slow.Nodes != 10 || r.Slow.Median != 0.5 || r.Fast.Median != 0 || !r.Facts[0].Separates {
		t.Errorf("%+v", r)
	}
	if _, err := ParseBy("mean"); err == nil {
		t.Error("the criterion mean is accepted")
	}
}

// Among fleets in which no fact is related to speed, at most one in twenty has a
// separating fact.
func TestFalsePositiveRate(t *testing.T) {
	const fleets = 100
	r := rand.New(rand.NewPCG(11, 13))
	wrong := 0
	for range fleets {
		var all []Record
		for i := range 18 {
			facts := make(map[string]float64)
			for k := range 20 {
				facts[fmt.Sprint("f", k)] = math.Floor(4 * r.Float64()) // with many ties
			}
			all = append(all, node(i, math.Exp(2*r.NormFloat64()), facts))
		}
		if slices.ContainsFunc(Rank(all, ByP50).Facts, func(f Fact) bool { return f.Separates }) {
			wrong++
		}
	}
	// 5 % of 100 is 5; with a probability of 0.999 the number is at most 13 (binomial).
	if wrong > 13 {
		t.Errorf("%d of %d fleets without a cause have a separating fact", wrong, fleets)
	}
}

// anyValues draws a sample with ties.
func anyValues(t *rapid.T, what string, most int) []float64 {
	return rapid.SliceOfN(rapid.Map(rapid.IntRange(-3, 6), func(i int) float64 { return float64(i) }), 1, most).Draw(t, what)
}

// Properties of any two samples.
func TestSeparation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, y := anyValues(t, "x", 7), anyValues(t, "y", 7)
		auc, chance := separation(x, y)
		pairs := 0.0
		for _, a := range x {
			for _, b := range y {
				switch {
				case a > b:
					pairs++
				case a == b:
					pairs += 0.5
				}
			}
		}
		if want := pairs / float64(len(x)*len(y)); math.Abs(auc-want) > 1e-9 {
			t.Fatalf("%v and %v: AUC %v, by counting pairs %v", x, y, auc, want)
		}
		if want := byCounting(x, y); math.Abs(chance-want) > 1e-9 {
			t.Fatalf("%v and %v: chance %v, by counting all splits %v", x, y, chance, want)
		}
		other, same := separation(y, x)
		if math.Abs(auc+other-1) > 1e-9 || math.Abs(chance-same) > 1e-9 {
			t.Fatalf("with the samples swapped: %v and %v, %v and %v", auc, other, chance, same)
		}
		// Only the order of the values counts.
		scale := func(v []float64) (w []float64) {
			for _, a := range v {
				w = append(w, math.Exp(a))
			}
			return w
		}
		if again, p := separation(scale(x), scale(y)); again != auc || p != chance {
			t.Fatalf("on another scale: %v, %v", again, p)
		}
	})
}

// byCounting tries all ways to choose the first group.
func byCounting(x, y []float64) float64 {
	all := slices.Concat(x, y)
	auc := func(in func(int) bool) float64 {
		s := 0.0
		for i, a := range all {
			for j, b := range all {
				if in(i) && !in(j) {
					if a > b {
						s++
					} else if a == b {
						s += 0.5
					}
				}
			}
		}
		return math.Abs(s/float64(len(x)*len(y)) - 0.5)
	}
	limit := auc(func(i int) bool { return i < len(x) })
	ways, those := 0, 0
	for mask := range 1 << len(all) {
		n := 0
		for i := range all {
			n += mask >> i & 1
		}
		if n != len(x) {
			continue
		}
		ways++
		if auc(func(i int) bool { return mask>>i&1 == 1 }) >= limit-1e-12 {
			those++
		}
	}
	return float64(those) / float64(ways)
}

// If both methods apply, sampling agrees with counting within four standard deviations of
// 20,000 draws.
func TestSampled(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for i := range 40 {
		x, y := make([]float64, 5+i%14), make([]float64, 20)
		for i := range x {
			x[i] = math.Floor(10*r.Float64()) + 2*r.Float64()
		}
		for j := range y {
			y[j] = math.Floor(10*r.Float64()) * float64(i%2) // in half of the cases all values are tied
		}
		ranks := midranks(slices.Concat(x, y))
		d := newDistribution(ranks, len(x))
		counted, drawn := d.exact(), d.sampled()
		if math.Abs(counted-drawn) > 4*math.Sqrt(counted*(1-counted)/maxSamples)+2./maxSamples {
			t.Errorf("counted %v, sampled %v", counted, drawn)
		}
	}
}

// A fact is 0 on nearly all of a thousand nodes, and two of the five nodes that have it
// are among the thirty slow ones. By the hypergeometric distribution the probability is
// 0.0082.
func TestRareFactDoesNotSeparate(t *testing.T) {
	x, y := make([]float64, 30), make([]float64, 970)
	x[0], x[1], y[0], y[1], y[2] = 3, 1, 2, 5, 4
	if _, chance := separation(x, y); chance < 0.006 || chance > 0.011 {
		t.Errorf("chance %v, want about 0.0082", chance)
	}
}

// For any fleet: every node is in exactly one list, no value is NaN, the facts are sorted
// by probability, and the order of the records does not matter.
func TestRankInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []Record
		for i := range rapid.IntRange(0, 14).Draw(t, "nodes") {
			facts := make(map[string]float64)
			for _, name := range []string{"a", "b", "c"} {
				if rapid.Bool().Draw(t, "has") {
					facts[name] = rapid.OneOf(rapid.Float64Range(-5, 5), rapid.Just(1.0), rapid.Just(math.Inf(1))).Draw(t, name)
				}
			}
			x := node(i, rapid.OneOf(rapid.Float64Range(0, 100), rapid.Just(1.0)).Draw(t, "p50"), facts)
			x.Spinups.Count = rapid.IntRange(0, 30).Draw(t, "spinups")
			x.Kernel = rapid.SampledFrom([]string{"", "5", "6"}).Draw(t, "kernel")
			all = append(all, x)
		}
		by := rapid.SampledFrom([]By{ByP50, ByP99}).Draw(t, "by")
		r := Rank(all, by)
		if r.Verdict == "" || len(r.Nodes) > 0 && len(r.Nodes)+len(r.LeftOut) != len(all) {
			t.Fatalf("%d nodes and %d left out of %d: %q", len(r.Nodes), len(r.LeftOut), len(all), r.Verdict)
		}
		for i, f := range r.Facts {
			if math.IsNaN(f.AUC) || f.AUC < 0 || f.AUC > 1 || !(f.Chance > 0 && f.Chance <= 1) || f.Corrected < f.Chance || f.NSlow < 1 || f.NFast < 1 {
				t.Fatalf("%+v", f)
			}
			if i > 0 && (f.Chance < r.Facts[i-1].Chance || f.Corrected < r.Facts[i-1].Corrected) {
				t.Fatalf("not sorted: %+v", r.Facts)
			}
		}
		again := Rank(rapid.Permutation(all).Draw(t, "order"), by)
		if fmt.Sprintf("%+v", again) != fmt.Sprintf("%+v", r) {
			t.Fatalf("with the records in another order:\n%+v\n%+v", r, again)
		}
	})
}
