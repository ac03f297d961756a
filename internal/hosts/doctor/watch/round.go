package watch

import (
	"context"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/platform/linux/threads"
	"holdfast/internal/platform/linux/tracepoint"
)

const (
	rareEvery = time.Minute      // between two readings of a Rare probe
	openAgain = 10 * time.Minute // between two attempts to open a probe
)

// standing is a probe that stays open, with its last result.
type standing struct {
	probe.Probe
	series probe.Series // nil: the probe is not open
	err    error        // of opening or of the last reading
	tried  time.Time    // when it was last opened or read
	facts  []fact.Fact  // of the last reading
}

// open opens all standing probes.
func (w *Watch) open(ctx context.Context, now time.Time) {
	for _, p := range w.deps.Standing {
		s := &standing{Probe: p}
		s.open(ctx, w.deps.Host, now)
		w.series = append(w.series, s)
	}
}

func (s *standing) open(ctx context.Context, h probe.Host, now time.Time) {
	s.series, s.err = s.Open(ctx, h, now)
	s.tried, s.facts = now, nil
	if s.Rare {
		s.tried = time.Time{} // the first reading is not delayed
	}
}

func (w *Watch) close() {
	for _, s := range w.series {
		if s.series == nil {
			continue
		}
		if err := s.series.Close(); err != nil {
			w.deps.Log.Debug("doctor: closing a probe", "probe", s.Name, "err", err)
		}
	}
}

// read reads a probe, or opens it again.
func (s *standing) read(ctx context.Context, h probe.Host, now time.Time) {
	if s.series == nil {
		if now.Sub(s.tried) >= openAgain {
			s.open(ctx, h, now)
		}
		return
	}
	if s.Rare && now.Sub(s.tried) < rareEvery-time.Second {
		return // the last facts stay valid
	}
	s.facts, s.err = s.series.Read(ctx, now)
	fact.Stamp(s.facts, now.UTC(), now.Sub(s.tried))
	s.tried = now
}

// round reads all standing probes once and judges their facts.
func (w *Watch) round(ctx context.Context) {
	now := time.Now()
	facts := &fact.Set{}
	for _, s := range w.series {
		if ctx.Err() != nil {
			return // an incomplete round does not count
		}
		s.read(ctx, w.deps.Host, now)
		facts.Add(s.facts...)
		if s.err != nil {
			facts.Gaps = append(facts.Gaps, doctor.Gap(s.Probe, s.err))
		}
	}
	w.symbols.drop(symbolsFor)
	own := len(facts.Facts)
	facts.Add(w.deps.Known()...)
	found, checked := doctor.Judge(w.deps.Rules, w.deps.Standing, facts)
	summary := fact.Summary(facts.Facts[:own])
	w.keep(now, summary)
	maps.Copy(summary, fact.Summary(w.machine)) // after keep: the sample of a test has them
	w.deps.Metrics.facts(slices.Concat(facts.Facts[:own], w.machine))
	w.mu.Lock()
	w.summary = summary
	w.status.At, w.status.Facts, w.status.Checked = now.UTC(), ofHost(slices.Concat(facts.Facts, w.machine)), checked
	w.status.Gaps = append([]fact.Gap{}, facts.Gaps...)
	w.mu.Unlock()
	w.record(examination{at: now.UTC(), findings: w.name(ctx, found), judged: judged(checked)})
}

// ofHost returns the facts about the host and its devices. There are thousands of facts
// about control groups on a large host; problems of a group are in findings.
func ofHost(all []fact.Fact) []fact.Fact {
	some := []fact.Fact{}
	for _, f := range all {
		if f.Subject.Cgroup == "" && f.Subject.Pid == 0 && f.Subject.Command == "" {
			some = append(some, f)
		}
	}
	return some
}

func judged(checked []doctor.Check) map[string]bool {
	m := make(map[string]bool)
	for _, c := range checked {
		m[c.Rule] = c.Verdict != doctor.NotJudged
	}
	return m
}

// left returns the facts about dying control groups that only rounds gather; a burst is
// too short for them.
func (w *Watch) left() []fact.Fact {
	var some []fact.Fact
	for _, s := range w.series {
		for _, f := range s.facts {
			if f.Name == fact.MemcgLeft {
				some = append(some, f)
			}
		}
	}
	return some
}

// burst runs a full examination.
func (w *Watch) burst(ctx context.Context, why string) {
	e := doctor.Examination{Host: w.deps.Host, Engine: w.names, For: w.cfg.Burst, Probes: w.deps.Probes, Rules: w.deps.Rules}
	e.Known = slices.Concat(w.deps.Known(), w.left())
	begin := time.Now()
	tests := w.testsMachine(why, begin)
	if tests {
		e.Probes, e.Known = append(slices.Clone(e.Probes), w.deps.Machine), append(e.Known, w.past()...)
	}
	var r doctor.Report
	var err error
	cpu := w.measured(func() { r, err = e.Run(ctx) })
	w.symbols.drop(symbolsFor)
	if ctx.Err() != nil {
		return
	}
	b := Burst{At: begin.UTC(), Why: why, CPU: cpu.Seconds(), Findings: len(r.Findings)}
	if err != nil {
		b.Error = err.Error()
	}
	w.bursts.ended(why, time.Now(), afterwards(cpu, w.cfg.burstShare()), len(r.Findings) > 0)
	w.mu.Lock()
	w.status.Cost.Bursts++
	w.status.Bursts = slices.Insert(w.status.Bursts, 0, b)
	w.status.Bursts = w.status.Bursts[:min(len(w.status.Bursts), maxBursts)]
	w.mu.Unlock()
	if tests && err == nil {
		w.keepTest(why, begin, r.Facts)
	}
	w.deps.Metrics.burst(why, cpu)
	w.deps.Log.Debug("doctor: burst", "why", why, "findings", b.Findings, "cpu", cpu, "error", b.Error)
	if err == nil {
		w.record(examination{at: time.Now().UTC(), findings: r.Findings, judged: judged(r.Checked), deep: true})
	}
}

// threadTime calls do on a thread that runs nothing else, and returns the CPU time that
// it used.
func threadTime(do func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begin := threads.CPUTime()
	do()
	return threads.CPUTime() - begin
}

// symbolsFor is how long the kernel's symbols are kept after their last use. They use about
// 5 MiB of memory, and reading them takes 0.1 s of CPU time.
const symbolsFor = 10 * time.Minute

// symbols caches the kernel's symbols.
type symbols struct {
	load func() (*tracepoint.Symbols, error)

	mu   sync.Mutex
	have *tracepoint.Symbols
	used time.Time
}

func (s *symbols) get() (*tracepoint.Symbols, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.have == nil {
		var err error
		if s.have, err = s.load(); err != nil {
			return nil, err
		}
	}
	s.used = time.Now()
	return s.have, nil
}

// drop frees the symbols if the last use is at least the given time ago.
func (s *symbols) drop(unused time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.used) >= unused {
		s.have = nil
	}
}
