package spinup

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"holdfast"
)

// near compares with the precision of the references.
func near(got, want, within float64) bool { return math.Abs(got-want) <= within }

// TestIntervalsAgainstReferences: Wilson and Newcombe from Newcombe's papers
// (1998: Statistics in Medicine 17, 857-872 table I and 873-890 table II),
// Fisher from R's fisher.test.
func TestIntervalsAgainstReferences(t *testing.T) {
	for _, c := range []struct {
		k, n      int
		low, high float64
	}{{81, 263, .2553, .3662}, {15, 148, .0624, .1605}, {0, 20, 0, .1611}, {1, 29, .0061, .1718}} {
		if got := wilson(c.k, c.n, z95); !near(got.Low, c.low, 1e-4) || !near(got.High, c.high, 1e-4) {
			t.Errorf("%d of %d: %+v, want %v to %v", c.k, c.n, got, c.low, c.high)
		}
	}
	for _, c := range []struct {
		k1, n1, k2, n2 int
		low, high      float64
	}{{48, 80, 56, 70, -.3339, -.0524}, {9, 10, 3, 10, .1705, .8090}, {0, 10, 0, 20, -.1611, .2775}} {
		// The papers give the first minus the second.
		if got := newcombe(c.k2, c.n2, c.k1, c.n1, z95); !near(got.Low, c.low, 1e-4) || !near(got.High, c.high, 1e-4) {
			t.Errorf("%+v: %+v", c, got)
		}
	}
	for _, c := range []struct {
		k1, n1, k2, n2 int
		p              float64
	}{{3, 4, 1, 4, .4857142857}, {1, 10, 11, 14, .002759456}, {0, 5, 0, 5, 1}, {10, 10, 0, 10, 1.082509e-05}, {5, 5, 5, 5, 1}} {
		if got := fisher(c.k1, c.n1, c.k2, c.n2); !near(got, c.p, 1e-8) {
			t.Errorf("%+v: p is %v", c, got)
		}
	}
}

func TestIntervalsHoldTheirValue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n1, n2 := rapid.IntRange(1, 3000).Draw(t, "n1"), rapid.IntRange(1, 3000).Draw(t, "n2")
		k1, k2 := rapid.IntRange(0, n1).Draw(t, "k1"), rapid.IntRange(0, n2).Draw(t, "k2")
		w := wilson(k1, n1, z95)
		if w.Low < 0 || w.High > 1 || w.Low > w.Value || w.High < w.Value {
			t.Fatalf("%+v", w)
		}
		d := newcombe(k1, n1, k2, n2, z95)
		if d.Low > d.Value || d.High < d.Value || d.Low < -1-1e-9 || d.High > 1+1e-9 {
			t.Fatalf("%+v", d)
		}
		p := fisher(k1, n1, k2, n2)
		if p < 0 || p > 1 || !near(p, fisher(k2, n2, k1, n1), 1e-6) {
			t.Fatalf("p is %v and the other way %v", p, fisher(k2, n2, k1, n1))
		}
	})
}

func TestPercentiles(t *testing.T) {
	values := distribution{values: []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}}
	for q, want := range map[float64]float64{0: 1, .1: 1, .5: 5, .9: 9, .99: 10, 1: 10} {
		if got := values.percentile(q); got != want {
			t.Errorf("%v: %v", q, got)
		}
	}
	if (distribution{}).percentile(.5) != 0 {
		t.Error("of nothing there is something")
	}
}

// draw makes n records of a driver with creates that take around median, log-normal
// as such times are, with a share of slow ones.
func draw(r *rand.Rand, n int, driver string, median time.Duration, slow float64) []Record {
	var out []Record
	for range n {
		took := time.Duration(float64(median) * math.Exp(.5*r.NormFloat64()))
		if r.Float64() < slow {
			took = 12 * time.Second
		}
		rec := timed(min(took, 12*time.Second), time.Second, time.Second)
		rec.Cohort.Driver = driver
		out = append(out, rec)
	}
	return out
}

func compareDrivers(records []Record) map[Phase]Difference {
	groups := map[string]Group{}
	for _, g := range Summarize(records, ByDriver.Of, DefaultRules()) {
		groups[g.Name] = g
	}
	out := map[Phase]Difference{}
	for _, d := range compare(groups["aufs"], groups["overlay2"], 1) {
		out[d.Phase] = d
	}
	return out
}

// TestAUFSAgainstOverlay compares with the published shares: 12 % of creates were slow
// before, 1.7 % after.
func TestAUFSAgainstOverlay(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	records := append(draw(r, 600, "aufs", 2*time.Second, .12), draw(r, 600, "overlay2", time.Second, .017)...)
	d := compareDrivers(records)[Create]
	if d.SlowChange != Better || d.MedianChange != Better || d.Slow.High >= 0 || d.Ratio.High >= 1 {
		t.Errorf("%+v", d)
	}
	groups := Summarize(records, ByDriver.Of, DefaultRules())
	if len(groups) != 2 || groups[0].Count != 600 || groups[0].Name != "aufs" {
		t.Fatalf("%+v", groups)
	}
	create := groups[0].Phases[0]
	if create.Phase != Create || create.Judged != 600 || create.Share.Low >= .12 || create.Share.High <= .12 || create.P99 != 12 || create.P50 < 1.5 || create.P50 > 2.6 {
		t.Errorf("%+v", create)
	}
	if d := compareDrivers(append(draw(r, 600, "aufs", time.Second, .02), draw(r, 600, "overlay2", 2*time.Second, .10)...))[Create]; d.SlowChange != Worse || d.MedianChange != Worse {
		t.Errorf("the other way round: %+v", d)
	}
	few := compareDrivers(append(draw(r, 5, "aufs", time.Second, 0), draw(r, 500, "overlay2", 9*time.Second, .5)...))[Create]
	if few.SlowChange != TooFew || few.MedianChange != TooFew {
		t.Errorf("of five records: %+v", few)
	}
}

// TestNoiseIsNotAChange compares equal groups: the rate of false verdicts over all phases
// of a comparison is at most 5 %.
func TestNoiseIsNotAChange(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 3))
	const times = 40
	wrong := 0
	for range times {
		for _, d := range compareDrivers(append(draw(r, 40, "aufs", time.Second, .05), draw(r, 40, "overlay2", time.Second, .05)...)) {
			if d.SlowChange != NoDifference || d.MedianChange != NoDifference {
				wrong++
				break
			}
		}
	}
	// 5 % of 40 are 2; 8 or more have a chance below 0.1 %.
	if wrong >= 8 {
		t.Errorf("%d of %d comparisons of equal groups show a difference", wrong, times)
	}
}

// TestThroughputGoesTheOtherWay: more MiB/s is better.
func TestThroughputGoesTheOtherWay(t *testing.T) {
	var records []Record
	for i := range 40 {
		slow, fast := pulled(10*time.Second, 15+float64(i%5)/10, 30), pulled(10*time.Second, 40+float64(i%5)/10, 30)
		slow.Cohort.Driver, fast.Cohort.Driver = "aufs", "overlay2"
		records = append(records, slow, fast)
	}
	d := compareDrivers(records)
	if d[Download].SlowChange != Better || d[Download].MedianChange != Better {
		t.Errorf("%+v", d[Download])
	}
	if d[Extract].SlowChange != NoDifference || d[Extract].MedianChange != NoDifference {
		t.Errorf("%+v", d[Extract])
	}
}

func TestGroupsCountFailuresAndTheCache(t *testing.T) {
	records := []Record{
		{Outcome: Failed, Cohort: Cohort{Host: "a"}},
		{Outcome: OK, Pull: &Pull{Cached: true, Done: true}, Cohort: Cohort{Host: "a"}},
		{Outcome: OK, Times: map[Phase]holdfast.Millis{Start: holdfast.Millis(time.Second)}, Cohort: Cohort{Host: "b"}},
	}
	got := Summarize(records, ByHost.Of, DefaultRules())
	if fmt.Sprintf("%s %d %d %d %d", got[0].Name, got[0].Count, got[0].Failed, got[0].Cached, len(got[0].Phases)) != "a 2 1 1 0" || got[1].Phases[0].Phase != Start {
		t.Errorf("%+v", got)
	}
	if len(compare(got[0], got[1], 1)) != 0 || len(Summarize(nil, ByAll.Of, DefaultRules())) != 0 {
		t.Error("something is said of nothing")
	}
}
