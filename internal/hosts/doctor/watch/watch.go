package watch

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/hosts/doctor/rule"
	"holdfast/internal/platform/engine"
)

// Deps are what a Watch works with.
type Deps struct {
	Host   probe.Host
	Engine doctor.Engine // names containers; nil: they have none
	Store  *Store        // nil: nothing is kept
	// Known are facts that rules need and no probe gives, a baseline's, asked for
	// in every round; nil: there are none. It must not block.
	Known func() []fact.Fact
	// Changed hears of the open findings after each look; nil: nobody does. It
	// must not block.
	Changed func([]Open)
	Metrics *Metrics // nil: none
	Log     *slog.Logger
	// Standing, Probes and Rules are probe.AllStanding, probe.All without the one
	// that tries the machine, and rule.All, where they are nil.
	Standing []probe.Standing
	Probes   []probe.Probe
	Rules    []rule.Rule
}

// Watch is the part that is always on. Run may be called once; the other methods
// at any time and from any goroutine.
type Watch struct {
	cfg     Config
	deps    Deps
	symbols *symbols
	asked   chan struct{} // somebody suspects something

	// Of Run's goroutine alone:
	series    []*standing
	track     tracker
	bursts    *bursts
	names     *cachedEngine
	sample    Sample
	compacted time.Time // when old samples were joined last

	mu      sync.Mutex
	status  Status
	summary map[string]float64 // of the last round
	began   time.Time
	subs    []*subscriber
}

// New returns a Watch that does nothing yet.
func New(cfg Config, deps Deps) *Watch {
	if deps.Standing == nil {
		deps.Standing = probe.AllStanding()
	}
	if deps.Probes == nil {
		deps.Probes = slices.DeleteFunc(probe.All(), func(p probe.Probe) bool { return p.Name == "machine" })
	}
	if deps.Rules == nil {
		deps.Rules = rule.All()
	}
	w := &Watch{cfg: cfg, deps: deps, asked: make(chan struct{}, 1)}
	w.symbols = &symbols{load: deps.Host.LoadSymbols}
	w.deps.Host.Symbols = w.symbols.get
	if deps.Engine != nil {
		w.names = &cachedEngine{engine: deps.Engine}
	}
	w.status = Status{Findings: []Open{}, Facts: []fact.Fact{}, Checked: []doctor.Check{}, Gaps: []fact.Gap{}, Bursts: []Burst{}}
	w.status.Cost.Every = cfg.Every.Seconds()
	return w
}

// Suspect asks for a deeper look soon: a container was slow to come up, for one.
func (w *Watch) Suspect() {
	select {
	case w.asked <- struct{}{}:
	default: // asked for already
	}
}

// Status is what is known now.
func (w *Watch) Status() Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.status
	s.Findings, s.Facts, s.Checked = slices.Clone(s.Findings), slices.Clone(s.Facts), slices.Clone(s.Checked)
	s.Gaps, s.Bursts = slices.Clone(s.Gaps), slices.Clone(s.Bursts)
	if !w.began.IsZero() {
		s.Cost.Seconds = time.Since(w.began).Seconds()
	}
	return s
}

// Summary is the last round's facts in one figure for each name (see fact.Summary),
// and when that was.
func (w *Watch) Summary() (map[string]float64, time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.summary), w.status.At
}

// History is what was known since then, at most limit events (0: all that are
// kept).
func (w *Watch) History(since time.Time, limit int) (History, error) {
	if w.deps.Store == nil {
		return History{Events: []Event{}, Samples: []Sample{}}, nil
	}
	return w.deps.Store.History(since, limit)
}

// afterwards is how long to wait after what took so much CPU time, so that it stays
// within its share.
func afterwards(cpu time.Duration, share float64) time.Duration {
	return time.Duration(float64(cpu) / share)
}

// purse is the CPU time that rounds may take. It fills with time, up to saved: so
// much may be taken at once, to find names, for one. It may be overdrawn by one
// round; the next waits until it is even.
type purse struct {
	share float64 // of one core, over 0
	have  time.Duration
	at    time.Time
}

// saved is what a purse holds at most: the default share of 100 s.
const saved = 500 * time.Millisecond

// pay takes what a round has cost out, and returns how long to wait for the next.
func (p *purse) pay(cpu time.Duration, now time.Time) time.Duration {
	p.have = min(saved, p.have+time.Duration(p.share*float64(now.Sub(p.at)))) - cpu
	p.at = now
	return max(0, afterwards(-p.have, p.share))
}

// Run watches until ctx is done. It returns when all of it has ended; what cannot
// be seen or kept is in the Status and the log.
func (w *Watch) Run(ctx context.Context) error {
	now := time.Now()
	w.mu.Lock()
	w.began = now
	w.mu.Unlock()
	w.bursts = newBursts(w.cfg, now)
	w.sample = Sample{At: now.UTC()}
	w.measured(func() { w.open(ctx, now) })
	money := purse{share: w.cfg.roundShare(), have: saved, at: now}
	defer w.close()
	asked := ""
	timer := time.NewTimer(w.cfg.Every)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			w.keepSample(time.Now())
			w.unsubscribe()
			return nil
		case <-w.asked:
			asked = told
			continue
		case <-timer.C:
		}
		cpu := w.measured(func() { w.round(ctx) })
		every := max(w.cfg.Every, money.pay(cpu, time.Now()))
		w.mu.Lock()
		w.status.Cost.Rounds++
		w.status.Cost.Every = every.Seconds()
		facts := w.summary
		w.mu.Unlock()
		w.deps.Metrics.round(cpu, every)
		if w.cfg.Burst > 0 && ctx.Err() == nil {
			if why := w.bursts.due(time.Now(), facts, asked, w.track.unsure()); why != "" {
				asked = ""
				w.burst(ctx, why)
			}
		}
		timer.Reset(every)
	}
}

// measured does something on a thread of its own and returns the CPU time that it
// took there.
func (w *Watch) measured(do func()) time.Duration {
	cpu := threadTime(do)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status.Cost.CPU += cpu.Seconds()
	return cpu
}

// took notes what a look found, and tells who wants to know.
func (w *Watch) took(l look) {
	events := w.track.take(l)
	open := w.track.list()
	w.mu.Lock()
	w.status.Findings = open
	w.status.Cost.Lost += int64(w.track.dropped)
	w.track.dropped = 0
	subs := slices.Clone(w.subs)
	w.mu.Unlock()
	for _, e := range events {
		w.tell(e)
		for _, s := range subs {
			s.send(e)
		}
	}
	w.deps.Metrics.open(open)
	w.keepEvents(events)
	if w.deps.Changed != nil {
		w.deps.Changed(open)
	}
}

// tell says an event in the log.
func (w *Watch) tell(e Event) {
	level, words := slog.LevelWarn, "doctor: finding"
	switch {
	case e.Kind == Ended:
		level, words = slog.LevelInfo, "doctor: the finding is over"
	case e.Finding.Severity == rule.Notice:
		level = slog.LevelInfo
	case e.Finding.Severity == rule.Critical:
		level = slog.LevelError
	}
	attrs := []any{"rule", e.Finding.Rule, "severity", e.Finding.Severity, "title", e.Finding.Title, "event", e.Kind}
	if who := e.Finding.Subject; who != nil {
		attrs = append(attrs, "container", who.Container, "cgroup", who.Cgroup, "pid", who.Pid, "command", who.Command)
		if who.Pod != nil {
			attrs = append(attrs, "namespace", who.Pod.Namespace, "pod", who.Pod.Name, "workload", who.Pod.Workload)
		}
	}
	if e.Kind == Ended {
		attrs = append(attrs, "lasted", e.At.Sub(e.Since).Round(time.Second))
	}
	w.deps.Log.Log(context.Background(), level, words, attrs...)
	w.deps.Metrics.event(e)
}

// name gives findings their names. The engine is asked only if there are any.
func (w *Watch) name(ctx context.Context, found []rule.Finding) []doctor.Finding {
	if len(found) == 0 {
		return nil
	}
	var e doctor.Engine
	if w.names != nil {
		e = w.names
	}
	names, _ := doctor.Names(ctx, w.deps.Host.Proc, e, nil) // without names they are found all the same
	list := make([]doctor.Finding, 0, len(found))
	for _, f := range found {
		list = append(list, names.Name(f))
	}
	return list
}

// namesFor is how long the engine's list of containers will do.
const namesFor = 30 * time.Second

// engineTime is how long the engine may take for it: a round does not wait longer.
const engineTime = 3 * time.Second

// cachedEngine asks an engine for all its containers not more often than that. It
// is for one goroutine.
type cachedEngine struct {
	engine doctor.Engine
	at     time.Time
	list   []engine.Container
}

// List implements doctor.Engine; labels are not looked at, which nobody gives here.
func (c *cachedEngine) List(ctx context.Context, labels map[string]string) ([]engine.Container, error) {
	if !c.at.IsZero() && time.Since(c.at) < namesFor {
		return c.list, nil
	}
	ctx, cancel := context.WithTimeout(ctx, engineTime)
	defer cancel()
	list, err := c.engine.List(ctx, labels)
	if err != nil {
		return c.list, err
	}
	c.list, c.at = list, time.Now()
	return list, nil
}
