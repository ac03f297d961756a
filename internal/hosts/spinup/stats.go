package spinup

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// By is the property by which records are grouped.
type By string

// The properties by which records can be grouped.
const (
	ByAll   By = "all"
	ByKind  By = "kind"
	ByImage By = "image"
	// ByTemplate groups sessions by their template; all other records are one group, "".
	ByTemplate By = "template"
	ByHost     By = "host"
	ByEngine   By = "engine" // its version
	ByDriver   By = "driver"
	ByStore    By = "store" // the image store
	ByKernel   By = "kernel"
	ByUnpigz   By = "unpigz"
	// ByNode is ByHost under Kubernetes' name. ByRuntime is ByEngine, extended by
	// the container runtime if it is not the engine's default.
	ByNode    By = "node"
	ByRuntime By = "runtime"
	// ByArm groups by the arm of the experiment that the Filter names.
	ByArm By = "arm"
)

// Groupings returns all groupings.
func Groupings() []By {
	return []By{ByAll, ByKind, ByImage, ByTemplate, ByHost, ByEngine, ByDriver, ByStore, ByKernel, ByUnpigz, ByNode, ByRuntime, ByArm}
}

// ParseBy checks the name of a grouping.
func ParseBy(s string) (By, error) {
	if !slices.Contains(Groupings(), By(s)) {
		var names []string
		for _, b := range Groupings() {
			names = append(names, string(b))
		}
		return "", fmt.Errorf("cannot group by %q: it is not one of %s", s, strings.Join(names, ", "))
	}
	return By(s), nil
}

// of returns the group of a record.
func (q Question) of(r Record) string {
	if q.By == ByArm {
		return r.Arms[q.Filter.Experiment]
	}
	return q.By.Of(r)
}

// Of returns the group of a record. ByArm depends on a Question.
func (b By) Of(r Record) string {
	switch b {
	case ByKind:
		return string(r.Kind)
	case ByImage:
		return r.Image
	case ByTemplate:
		return r.Template
	case ByHost, ByNode:
		return r.Cohort.Host
	case ByEngine:
		return r.Cohort.Engine
	case ByDriver:
		return r.Cohort.Driver
	case ByStore:
		return r.Cohort.ImageStore
	case ByKernel:
		return r.Cohort.Kernel
	case ByRuntime:
		if r.Cohort.Runtime != "" {
			return r.Cohort.Engine + ", " + r.Cohort.Runtime
		}
		return r.Cohort.Engine
	case ByUnpigz:
		return strconv.FormatBool(r.Cohort.Unpigz)
	}
	return "all"
}

// Group summarizes a group of records.
type Group struct {
	Name    string       `json:"name"`
	Count   int          `json:"count"`
	Failed  int          `json:"failed"`
	Stopped int          `json:"stopped"`
	Cached  int          `json:"cached"` // with the image in the cache
	Phases  []PhaseStats `json:"phases"` // the phases with data, in their order
}

// PhaseStats summarizes one phase in a group.
type PhaseStats struct {
	Phase  Phase `json:"phase"`
	Judged int   `json:"judged"`
	Slow   int   `json:"slow"`
	Share  Share `json:"slow_share"`
	// Percentiles of MiB/s (download, extract) or seconds (the rest), of the
	// judged. For MiB/s the slow end is P10, for seconds P90 and P99.
	P10 float64 `json:"p10"`
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	// Confidence ranges of the percentiles.
	P10Range Range `json:"p10_range"`
	P50Range Range `json:"p50_range"`
	P90Range Range `json:"p90_range"`
	P99Range Range `json:"p99_range"`

	values distribution
}

func newPhaseStats(phase Phase, judged, slow int, v distribution) PhaseStats {
	return PhaseStats{
		Phase: phase, Judged: judged, Slow: slow, Share: wilson(slow, judged, z95), values: v,
		P10: v.percentile(.1), P50: v.percentile(.5), P90: v.percentile(.9), P99: v.percentile(.99),
		P10Range: v.spread(.1), P50Range: v.spread(.5), P90Range: v.spread(.9), P99Range: v.spread(.99),
	}
}

// Share is a share between 0 and 1 with its confidence interval.
type Share struct {
	Value float64 `json:"value"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

// z95 is the standard normal's 97.5 % quantile: 95 % of it are within ±z95.
const z95 = 1.959963984540054

// wilson returns the share k of n with Wilson's score interval at z standard
// deviations (E. B. Wilson, Probable Inference, 1927). Unlike the usual ±z·σ it
// holds for shares near 0, like slow shares, and for few records: 0 of 30 is 0 to
// 11 %, not 0 ± 0.
func wilson(k, n int, z float64) Share {
	if n == 0 {
		return Share{Low: 0, High: 1}
	}
	p, m := float64(k)/float64(n), float64(n)
	center := (p + z*z/(2*m)) / (1 + z*z/m)
	half := z / (1 + z*z/m) * math.Sqrt(p*(1-p)/m+z*z/(4*m*m))
	return Share{Value: p, Low: min(max(center-half, 0), p), High: max(min(center+half, 1), p)}
}

// Summarize groups records and computes how often each phase was slow by the
// rules. Intervals are of 95 %. The largest group comes first.
func Summarize(records []Record, group func(Record) string, rules Rules) []Group {
	members := map[string][]Record{}
	for _, r := range records {
		name := group(r)
		members[name] = append(members[name], r)
	}
	var out []Group
	for name, list := range members {
		out = append(out, summarize(name, list, rules))
	}
	sortGroups(out)
	return out
}

// sortGroups puts the largest first.
func sortGroups(list []Group) {
	sort.Slice(list, func(i, j int) bool {
		a, b := &list[i], &list[j]
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Name, b.Name)) < 0
	})
}

func summarize(name string, records []Record, rules Rules) Group {
	g := Group{Name: name, Count: len(records), Phases: []PhaseStats{}}
	type judged struct {
		slow   int
		values []float64
	}
	phases := map[Phase]*judged{}
	for _, r := range records {
		switch r.Outcome {
		case Failed:
			g.Failed++
		case Stopped:
			g.Stopped++
		}
		if r.Pull != nil && r.Pull.Cached {
			g.Cached++
		}
		for _, v := range rules.Judge(r) {
			s := phases[v.Phase]
			if s == nil {
				s = &judged{}
				phases[v.Phase] = s
			}
			if v.Slow {
				s.slow++
			}
			s.values = append(s.values, v.Value)
		}
	}
	for _, phase := range Phases() {
		if s := phases[phase]; s != nil {
			slices.Sort(s.values)
			g.Phases = append(g.Phases, newPhaseStats(phase, len(s.values), s.slow, distribution{values: s.values}))
		}
	}
	return g
}
