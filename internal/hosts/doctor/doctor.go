// Package doctor finds out why a container host is slow: which container causes it, on
// which path through the kernel, and what cures it.
//
// The package probe reads figures from the host and returns facts. The package rule
// judges the facts and returns findings with their cures. This package runs both and adds
// the names of containers and processes. It changes nothing on the host except for a
// control group of its own, in which it allocates memory.
//
// docs/doctor.md lists every check with its threshold and the source of the threshold.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/hosts/doctor/rule"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/tasks"
)

// Bounds of the duration of an examination.
const (
	MinFor = time.Second
	MaxFor = 10 * time.Minute
)

// namesLimit bounds the wait for the engine's list of containers, so that the report does
// not wait for an engine that hangs.
const namesLimit = 5 * time.Second

// Engine lists containers with their names.
type Engine interface {
	List(ctx context.Context, labels map[string]string) ([]engine.Container, error)
}

// Examination is one examination of a host.
type Examination struct {
	Host probe.Host
	// Engine may be nil. Containers then have no names, and NoEngine holds the reason.
	Engine   Engine
	NoEngine error
	// For is the duration, MinFor to MaxFor.
	For time.Duration
	// Step, if it is not nil, is called with each step of the examination.
	Step func(string)
	// Probes and Rules default to probe.All and rule.All.
	Probes []probe.Probe
	Rules  []rule.Rule
	// Known holds facts from elsewhere that rules may need, such as those of a baseline.
	Known []fact.Fact
}

// Report is the result of an examination. Findings are in the order of their severity.
type Report struct {
	At       time.Time  `json:"at"`
	Seconds  float64    `json:"seconds"` // duration of the examination
	Kernel   string     `json:"kernel"`
	Findings []Finding  `json:"findings"`
	Checked  []Check    `json:"checked"`
	Gaps     []fact.Gap `json:"gaps"`
	// Facts holds all facts, for comparisons with other hosts and times.
	Facts []fact.Fact `json:"facts"`
}

// Finding is a rule's finding with the names of its subjects.
type Finding struct {
	rule.Finding
	Subject *Subject  `json:"subject,omitempty"`
	Against []Subject `json:"against,omitempty"` // the victims
}

// Verdict is the result of a check.
type Verdict string

// The verdicts.
const (
	Fine      Verdict = "fine"
	Found     Verdict = "found"
	NotJudged Verdict = "not judged"
)

// Check is one rule and its verdict.
type Check struct {
	Rule    string  `json:"rule"`
	Verdict Verdict `json:"verdict"`
	Why     string  `json:"why,omitempty"` // why it was not judged
}

// Validate checks the duration.
func (e Examination) Validate() error {
	if e.For < MinFor || e.For > MaxFor {
		return fmt.Errorf("an examination of %v: it must be from %v to %v", e.For, MinFor, MaxFor)
	}
	return nil
}

// Run examines the host for about e.For and judges the facts. It returns an error only if
// there is no report: ctx is done, or e.For is out of range. What cannot be observed is
// in the report's gaps. Only one Run may be active at a time.
func (e Examination) Run(ctx context.Context) (Report, error) {
	if err := e.Validate(); err != nil {
		return Report{}, err
	}
	if e.Probes == nil {
		e.Probes = probe.All()
	}
	if e.Rules == nil {
		e.Rules = rule.All()
	}
	if e.Host.Symbols == nil {
		e.Host.Symbols = sync.OnceValues(e.Host.LoadSymbols)
	}
	begin := time.Now()
	facts := e.runProbes(ctx, begin)
	if ctx.Err() != nil {
		return Report{}, ctx.Err()
	}
	e.step("judging")
	facts.Add(e.Known...)
	r := Report{At: begin, Kernel: facts.Text(fact.KernelRelease), Findings: []Finding{}, Facts: facts.Facts}
	var found []rule.Finding
	found, r.Checked = Judge(e.Rules, e.Probes, facts)
	names, gap := Names(ctx, e.Host.Proc, e.Engine, e.NoEngine)
	if gap != nil {
		facts.Gaps = append(facts.Gaps, *gap)
	}
	for _, f := range found {
		r.Findings = append(r.Findings, names.Name(f))
	}
	sort.SliceStable(r.Findings, func(i, j int) bool { return r.Findings[j].Severity.Weight() < r.Findings[i].Severity.Weight() })
	r.Gaps = append([]fact.Gap{}, facts.Gaps...)
	r.Seconds = time.Since(begin).Seconds()
	return r, nil
}

// Judge applies the rules to facts. It returns the findings in the order of the rules,
// and the verdict of each rule. The probes provide the reason why a fact is missing.
func Judge(rules []rule.Rule, probes []probe.Probe, facts *fact.Set) ([]rule.Finding, []Check) {
	var found []rule.Finding
	var checked []Check
	for _, x := range rules {
		check := Check{Rule: x.Name, Verdict: Fine}
		if missing := x.Missing(facts); len(missing) > 0 {
			check.Verdict, check.Why = NotJudged, whyMissing(probes, missing, facts.Gaps)
			checked = append(checked, check)
			continue
		}
		for _, f := range x.Judge(facts) {
			f.Rule = x.Name
			check.Verdict = Found
			found = append(found, f)
		}
		checked = append(checked, check)
	}
	return found, checked
}

func (e Examination) step(what string) {
	if e.Step != nil {
		e.Step(what)
	}
}

// activeProbe is an open probe.
type activeProbe struct {
	probe  probe.Probe
	begin  time.Time
	series probe.Series
}

// runProbes runs the probes. Those that load the machine run first, one at a time. The
// others run together for the rest of the time; those that read only once are read in
// between.
func (e Examination) runProbes(ctx context.Context, begin time.Time) *fact.Set {
	facts := &fact.Set{}
	for _, p := range e.Probes {
		if p.Busy && ctx.Err() == nil {
			e.step("testing the machine: " + p.Name)
			e.open(ctx, p, facts).end(ctx, facts)
		}
	}
	quiet := time.Now()
	var all []*activeProbe
	for _, p := range e.Probes {
		if !p.Busy && !p.Once {
			all = append(all, e.open(ctx, p, facts))
		}
	}
	// Reading the probes takes about as long as opening them, and some more time to name
	// processes.
	reading := time.Since(quiet) * 3 / 2
	e.step(fmt.Sprintf("observing for %v", e.For.Round(time.Second)))
	for _, p := range e.Probes {
		if p.Once {
			e.open(ctx, p, facts).end(ctx, facts)
		}
	}
	_ = tasks.Sleep(ctx, max(MinFor-time.Since(quiet), e.For-time.Since(begin)-reading))
	e.step("reading the results")
	for _, l := range all { // also when ctx is done, to release their kernel resources
		l.end(ctx, facts)
	}
	facts.Add(fact.Fact{Name: fact.HostWindow, Value: time.Since(quiet).Seconds(), Unit: fact.Seconds, At: time.Now()})
	return facts
}

// open opens a probe. It returns nil if that fails or if ctx is done.
func (e Examination) open(ctx context.Context, p probe.Probe, facts *fact.Set) *activeProbe {
	if ctx.Err() != nil {
		return nil
	}
	begin := time.Now()
	series, err := p.Open(ctx, e.Host, begin)
	if err != nil {
		facts.Gaps = append(facts.Gaps, Gap(p, err))
		return nil
	}
	return &activeProbe{probe: p, begin: begin, series: series}
}

// end reads and closes the probe. A nil probe has no facts.
func (l *activeProbe) end(ctx context.Context, facts *fact.Set) {
	if l == nil {
		return
	}
	now := time.Now()
	fs, err := l.series.Read(ctx, now)
	err = errors.Join(err, l.series.Close())
	fact.Stamp(fs, time.Now(), now.Sub(l.begin))
	facts.Add(fs...)
	if err != nil {
		facts.Gaps = append(facts.Gaps, Gap(l.probe, err))
	}
}

// Gap returns what cannot be observed because of a probe's error.
func Gap(p probe.Probe, err error) fact.Gap {
	return fact.Gap{Probe: p.Name, Sees: p.Sees, Why: strings.ReplaceAll(err.Error(), "\n", "; "), Hint: probe.Hint(err)}
}

// whyMissing returns why facts are missing, by the error of the probe that provides them.
func whyMissing(probes []probe.Probe, missing []string, gaps []fact.Gap) string {
	var why []string
	for _, name := range missing {
		reason := "there is no such figure on this host"
		i := slices.IndexFunc(probes, func(p probe.Probe) bool { return slices.Contains(p.Gives, name) })
		if i < 0 {
			reason = "no probe here measures it"
		} else if g := slices.IndexFunc(gaps, func(g fact.Gap) bool { return g.Probe == probes[i].Name }); g >= 0 {
			reason = gaps[g].Why
		}
		if s := name + ": " + reason; !slices.Contains(why, s) {
			why = append(why, s)
		}
	}
	return strings.Join(why, "; ")
}
