package spinup

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"holdfast"
)

// fleetOf returns the records of n nodes, each newest first, and all of them.
func fleetOf(n, each int) (nodes [][]Record, all []Record) {
	draw := rand.New(rand.NewPCG(7, 7))
	begun := time.Now().Add(-time.Hour)
	for node := range n {
		var list []Record
		for i := range each {
			seconds := draw.ExpFloat64() * float64(1+node%3)
			r := timed(time.Duration(seconds*float64(time.Second)), time.Duration(draw.IntN(1000))*time.Millisecond, 0)
			r.ID, r.Begun, r.Outcome = newID(begun), begun.Add(-time.Duration(i*n+node)*time.Second), OK
			r.Cohort = Cohort{Host: fmt.Sprintf("n%d", node), Driver: []string{"overlay2", "aufs", "btrfs"}[node%3]}
			if i%17 == 0 {
				r.Outcome, r.Failed = Failed, Start
			}
			list = append(list, r)
		}
		nodes, all = append(nodes, list), append(all, list...)
	}
	slices.SortFunc(all, func(a, b Record) int { return b.Begun.Compare(a.Begun) })
	return nodes, all
}

// The merged answers of nodes equal the answer from all their records at one place: counts
// exactly, values within half a percent.
func TestSketchesMerge(t *testing.T) {
	nodes, all := fleetOf(6, 100)
	for _, q := range []Question{{By: ByDriver}, {By: ByHost, Against: "n3"}, {By: ByAll}, {At: all[333].Begun}} {
		rules := DefaultRules()
		want, err := NewReport(all, q, rules)
		if err != nil {
			t.Fatal(err)
		}
		var answers []NodeSketch
		for i, list := range nodes {
			answers = append(answers, NodeSketch{Node: holdfast.NodeID(fmt.Sprint(i)), Sketch: NewSketch(list, q, rules)})
		}
		answers = append(answers, NodeSketch{Node: "gone", Err: errors.New("it does not answer")})
		got, err := FleetReportOf(answers, q)
		if err != nil {
			t.Fatal(err)
		}
		if got.Nodes != 6 || len(got.NoAnswer) != 1 || got.NoAnswer[0] != (Missing{"gone", "it does not answer"}) {
			t.Errorf("%d nodes, without an answer: %v", got.Nodes, got.NoAnswer)
		}
		if got.Count != want.Count || !got.Oldest.Equal(want.Oldest) || !got.Newest.Equal(want.Newest) || len(got.Groups) != len(want.Groups) || len(got.Compared) != len(want.Compared) {
			t.Fatalf("%+v: %d records in %d groups from %v to %v", q, got.Count, len(got.Groups), got.Oldest, got.Newest)
		}
		for i, g := range got.Groups {
			sameGroup(t, g, want.Groups[i])
		}
		for i, c := range got.Compared {
			for j, d := range c.Phases {
				w := want.Compared[i].Phases[j]
				if c.A != want.Compared[i].A || c.B != want.Compared[i].B || d.P != w.P || d.Slow != w.Slow || d.SlowChange != w.SlowChange || d.MedianChange != w.MedianChange || !near(d.Ratio.Value, w.Ratio.Value, .02*w.Ratio.Value) {
					t.Errorf("%s and %s: %+v, want %+v", c.A, c.B, d, w)
				}
			}
		}
	}
}

func sameGroup(t *testing.T, got, want Group) {
	t.Helper()
	if got.Name != want.Name || got.Count != want.Count || got.Failed != want.Failed || len(got.Phases) != len(want.Phases) {
		t.Fatalf("%+v, want %+v", got, want)
	}
	for i, p := range got.Phases {
		w := want.Phases[i]
		if p.Phase != w.Phase || p.Judged != w.Judged || p.Slow != w.Slow || p.Share != w.Share {
			t.Errorf("%s: %+v, want %+v", got.Name, p, w)
		}
		for _, v := range [][2]float64{{p.P10, w.P10}, {p.P50, w.P50}, {p.P90, w.P90}, {p.P99, w.P99}, {p.P50Range.Low, w.P50Range.Low}, {p.P50Range.High, w.P50Range.High}, {p.P99Range.High, w.P99Range.High}} {
			if !near(v[0], v[1], max(.005*v[1], least)) {
				t.Errorf("%s, %s: %v, want %v", got.Name, p.Phase, v[0], v[1])
			}
		}
	}
}

// An answer that no agent gives is not merged.
func TestSketchIsChecked(t *testing.T) {
	nodes, _ := fleetOf(1, 40)
	good := func() Sketch { return NewSketch(nodes[0], Question{}, DefaultRules()) }
	if err := good().Check(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Sketch){
		"a negative count":      func(x *Sketch) { x.Count = -1 },
		"more slow than judged": func(x *Sketch) { x.Groups[0].Phases[0].Slow = 41 },
		"fewer values":          func(x *Sketch) { x.Groups[0].Phases[0].Judged++ },
		"a negative number":     func(x *Sketch) { x.Groups[0].Phases[0].Values.N[0] = -1 },
		"an index out of range": func(x *Sketch) { x.Groups[0].Phases[0].Values.At[0] = -1 },
		"unordered indices":     func(x *Sketch) { v := x.Groups[0].Phases[0].Values.At; v[0], v[1] = v[1], v[0] },
		"an unknown phase":      func(x *Sketch) { x.Groups[0].Phases[0].Phase = "sleep" },
		"too many groups":       func(x *Sketch) { x.Groups = make([]GroupSketch, maxSketchGroups+1) },
	} {
		x := good()
		change(&x)
		if err := x.Check(); !errors.Is(err, ErrSketch) {
			t.Errorf("%s: %v", name, err)
		}
		if r, err := FleetReportOf([]NodeSketch{{Node: "n1", Sketch: x}}, Question{}); err != nil || r.Nodes != 0 || len(r.NoAnswer) != 1 {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

// A thousand nodes with the most records that each keeps are merged.
func BenchmarkMerge(b *testing.B) {
	nodes, _ := fleetOf(10, 10_000)
	var answers []NodeSketch
	for i := range 1000 {
		answers = append(answers, NodeSketch{Node: holdfast.NodeID(fmt.Sprint(i)), Sketch: NewSketch(nodes[i%10], Question{By: ByDriver}, DefaultRules())})
	}
	for b.Loop() {
		if r, err := FleetReportOf(answers, Question{By: ByDriver}); err != nil || r.Count != 10_000_000 {
			b.Fatalf("%d records, %v", r.Count, err)
		}
	}
}
