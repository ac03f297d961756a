// Package doctor says why a container host is slow: which container does it, on
// which path through the kernel, and what to do about it.
//
// It is a chain. Package probe looks and gives facts; package rule judges them and
// gives findings, with what would cure them; this package joins the two, and gives
// the culprits their names. It changes nothing on the host, but for a control
// group of its own in which it tries to allocate memory.
//
// docs/doctor.md has every check with its threshold and where that comes from.
package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/hosts/doctor/rule"
	"holdfast/internal/platform/engine"
)

// Bounds of how long a look may take.
const (
	MinFor = time.Second
	MaxFor = 10 * time.Minute
)

// namesLimit is what the engine gets to name its containers: the report does not
// wait for one that hangs.
const namesLimit = 5 * time.Second

// Engine names containers.
type Engine interface {
	List(ctx context.Context, labels map[string]string) ([]engine.Container, error)
}

// Examination is one look at a host.
type Examination struct {
	Host probe.Host
	// Engine may be nil: containers have no names then, and NoEngine says why.
	Engine   Engine
	NoEngine error
	// For is how long to look, MinFor to MaxFor.
	For time.Duration
	// Step is told what is being done; nil is nobody.
	Step func(string)
	// Probes and Rules are probe.All and rule.All, where they are nil.
	Probes []probe.Probe
	Rules  []rule.Rule
	// Known are facts from elsewhere that rules may need: a baseline's.
	Known []fact.Fact
}

// Report is what came out. Findings are in the order of their severity.
type Report struct {
	At       time.Time  `json:"at"`
	Seconds  float64    `json:"seconds"` // that the look took
	Kernel   string     `json:"kernel"`
	Findings []Finding  `json:"findings"`
	Checked  []Check    `json:"checked"`
	Gaps     []fact.Gap `json:"gaps"`
	// Facts are all that was found out, for comparing with other hosts and times.
	Facts []fact.Fact `json:"facts"`
}

// Finding is a rule's, with the culprit's names.
type Finding struct {
	rule.Finding
	Subject *Subject  `json:"who,omitempty"`
	Against []Subject `json:"against,omitempty"` // the victims
}

// Verdict is what became of a rule.
type Verdict string

// The verdicts.
const (
	Fine      Verdict = "fine"
	Found     Verdict = "found"
	NotJudged Verdict = "not judged"
)

// Check is one rule, and what became of it.
type Check struct {
	Rule    string  `json:"rule"`
	Verdict Verdict `json:"verdict"`
	Why     string  `json:"why,omitempty"` // it was not judged
}

// Validate refuses a time to look that makes no sense.
func (e Examination) Validate() error {
	if e.For < MinFor || e.For > MaxFor {
		return fmt.Errorf("a look of %v: it has to be from %v to %v", e.For, MinFor, MaxFor)
	}
	return nil
}

// Run looks, for about the time that is asked for, and judges. An error means that
// there is no report: ctx is done, or the time to look makes no sense. What cannot
// be seen is in the report's gaps. One Run at a time.
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
	facts := e.look(ctx, begin)
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
	slices.SortStableFunc(r.Findings, func(a, b Finding) int { return b.Severity.Weight() - a.Severity.Weight() })
	r.Gaps = append([]fact.Gap{}, facts.Gaps...)
	r.Seconds = time.Since(begin).Seconds()
	return r, nil
}

// Judge has the rules judge facts. It returns what they find, in their order, and
// what became of each rule; the probes are asked why a fact is not there.
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

// looking is a probe that has begun.
type looking struct {
	probe  probe.Probe
	begin  time.Time
	finish probe.Finish
}

// look runs the probes: those that load the machine first, one by one, and then
// the others together for the rest of the time, with those that read only once in
// between.
func (e Examination) look(ctx context.Context, begin time.Time) *fact.Set {
	facts := &fact.Set{}
	var all []looking
	for _, p := range e.Probes {
		if p.Busy && ctx.Err() == nil {
			e.step("trying the machine: " + p.Name)
			if l, ok := start(ctx, p, e.Host, facts); ok {
				l.end(ctx, facts)
			}
		}
	}
	quiet := time.Now()
	for _, p := range e.Probes {
		if !p.Busy && !p.Once && ctx.Err() == nil {
			if l, ok := start(ctx, p, e.Host, facts); ok {
				all = append(all, l)
			}
		}
	}
	// To read what was seen takes about as long as it took to begin, and some more
	// to say who it was.
	reading := time.Since(quiet) * 3 / 2
	e.step(fmt.Sprintf("watching for %v", e.For.Round(time.Second)))
	for _, p := range e.Probes {
		if p.Once && ctx.Err() == nil {
			if l, ok := start(ctx, p, e.Host, facts); ok {
				l.end(ctx, facts)
			}
		}
	}
	timer := time.NewTimer(max(MinFor-time.Since(quiet), e.For-time.Since(begin)-reading, 0))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	e.step("reading what was seen")
	for _, l := range all { // also when ctx is done: they hold what the kernel has for them
		l.end(ctx, facts)
	}
	facts.Add(fact.Fact{Name: fact.HostWindow, Value: time.Since(quiet).Seconds(), Unit: fact.Seconds, At: time.Now()})
	return facts
}

func start(ctx context.Context, p probe.Probe, h probe.Host, facts *fact.Set) (looking, bool) {
	l := looking{probe: p, begin: time.Now()}
	var err error
	if l.finish, err = p.Start(ctx, h); err != nil {
		facts.Gaps = append(facts.Gaps, gap(p, err))
		return l, false
	}
	return l, true
}

func (l looking) end(ctx context.Context, facts *fact.Set) {
	over := time.Since(l.begin)
	fs, err := l.finish(ctx, over)
	for i := range fs {
		fs[i].At = time.Now()
		if fs[i].Over == 0 && (fs[i].Unit == fact.PerSecond || fs[i].Unit == fact.Share) {
			fs[i].Over = over.Seconds()
		}
	}
	facts.Add(fs...)
	if err != nil {
		facts.Gaps = append(facts.Gaps, gap(l.probe, err))
	}
}

func gap(p probe.Probe, err error) fact.Gap {
	return fact.Gap{Probe: p.Name, Sees: p.Sees, Why: strings.ReplaceAll(err.Error(), "\n", "; "), Hint: probe.Hint(err)}
}

// whyMissing says why facts are not there: what the probe said that gives them.
func whyMissing(probes []probe.Probe, missing []string, gaps []fact.Gap) string {
	var why []string
	for _, name := range missing {
		reason := "there was nothing to see"
		i := slices.IndexFunc(probes, func(p probe.Probe) bool { return slices.Contains(p.Gives, name) })
		if i < 0 {
			reason = "nothing here measures it"
		} else if g := slices.IndexFunc(gaps, func(g fact.Gap) bool { return g.Probe == probes[i].Name }); g >= 0 {
			reason = gaps[g].Why
		}
		if s := name + ": " + reason; !slices.Contains(why, s) {
			why = append(why, s)
		}
	}
	return strings.Join(why, "; ")
}
