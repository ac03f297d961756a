package watch

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/hosts/doctor/rule"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/hostload"
	"holdfast/internal/platform/tasks"
)

// Deps are the dependencies of a Watch.
type Deps struct {
	Host   probe.Host
	Engine doctor.Engine // provides the names of containers; nil: containers have no names
	Store  *Store        // nil: nothing is stored
	// Known returns facts that rules need and no probe provides, such as those of a
	// baseline. It is called in every round and must not block. It may be nil.
	Known func() []fact.Fact
	// Changed is called with the open findings after each round and burst. It must not
	// block. It may be nil.
	Changed func([]Open)
	Metrics *Metrics // nil: the metrics are not exported
	Log     *slog.Logger
	// Standing, Probes, Machine and Rules default to probe.AllStanding, to probe.All without
	// probe.Machine, to that, and to rule.All.
	Standing []probe.Probe
	Probes   []probe.Probe
	Machine  probe.Probe
	Rules    []rule.Rule
}

// Watch examines a host continuously. Run may be called once. The other methods may be
// called at any time and from any goroutine.
type Watch struct {
	cfg     Config
	deps    Deps
	symbols *symbols
	asked   chan struct{} // a burst is requested

	// Only for the goroutine of Run:
	series    []*standing
	track     tracker
	bursts    *bursts
	names     doctor.Engine // nil: containers have no names
	sample    Sample
	compacted time.Time // when old samples were last merged
	machine   []fact.Fact
	tested    time.Time // when the facts of machine were measured

	mu      sync.Mutex
	status  Status
	summary map[string]float64 // facts of the last round
	began   time.Time
	streams map[chan Event]bool
}

// New returns a Watch. It does nothing before Run.
func New(cfg Config, deps Deps) *Watch {
	if deps.Standing == nil {
		deps.Standing = probe.AllStanding()
	}
	if deps.Machine.Open == nil {
		deps.Machine = probe.Machine()
	}
	if deps.Probes == nil {
		deps.Probes = slices.DeleteFunc(probe.All(), func(p probe.Probe) bool { return p.Name == deps.Machine.Name })
	}
	if deps.Rules == nil {
		deps.Rules = rule.All()
	}
	if deps.Metrics == nil {
		deps.Metrics = NewMetrics(prometheus.NewRegistry())
	}
	if deps.Known == nil {
		deps.Known = func() []fact.Fact { return nil }
	}
	w := &Watch{cfg: cfg, deps: deps, asked: make(chan struct{}, 1), streams: make(map[chan Event]bool)}
	w.symbols = &symbols{load: deps.Host.LoadSymbols}
	w.deps.Host.Symbols = w.symbols.get
	if deps.Engine != nil {
		w.names = &cachedEngine{engine: deps.Engine}
	}
	w.status = Status{Findings: []Open{}, Facts: []fact.Fact{}, Checked: []doctor.Check{}, Gaps: []fact.Gap{}, Bursts: []Burst{}}
	w.status.Cost.Every = cfg.Every.Seconds()
	return w
}

// Suspect requests a burst soon, for example because a container started slowly.
func (w *Watch) Suspect() {
	select {
	case w.asked <- struct{}{}:
	default: // a burst is already requested
	}
}

// Status returns the current state.
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

// Summary returns the facts of the last round as one figure per name (see fact.Summary),
// and the time of that round.
func (w *Watch) Summary() (map[string]float64, time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.summary), w.status.At
}

// History returns the events and samples since the given time, at most limit events (0:
// all that are stored).
func (w *Watch) History(since time.Time, limit int) (History, error) {
	if w.deps.Store == nil {
		return History{Events: []Event{}, Samples: []Sample{}}, nil
	}
	return w.deps.Store.History(since, limit)
}

// afterwards returns how long to wait after using so much CPU time, so that the use stays
// within its share.
func afterwards(cpu time.Duration, share float64) time.Duration {
	return time.Duration(float64(cpu) / share)
}

// budget is the CPU time that rounds may use. It grows with time up to maxSaved, which
// may be used at once, for example to resolve names. One round may overdraw it; the next
// round waits until it is balanced.
type budget struct {
	share float64 // of one core, over 0
	have  time.Duration
	at    time.Time
}

// maxSaved is the most that a budget holds: the default share of 100 s.
const maxSaved = 500 * time.Millisecond

// spend subtracts the cost of a round and returns the wait before the next.
func (p *budget) spend(cpu time.Duration, now time.Time) time.Duration {
	p.have = min(maxSaved, p.have+time.Duration(p.share*float64(now.Sub(p.at)))) - cpu
	p.at = now
	return max(0, afterwards(-p.have, p.share))
}

// Run examines the host until ctx is done. It returns when all its work has ended. What
// cannot be observed or stored is in the Status and the log.
func (w *Watch) Run(ctx context.Context) error {
	now := time.Now()
	w.mu.Lock()
	w.began = now
	w.mu.Unlock()
	w.bursts = newBursts(w.cfg, now)
	w.sample = Sample{At: now.UTC()}
	left := budget{share: w.cfg.roundShare(), have: maxSaved, at: now}
	// Opening the probes takes more CPU time than all else at an agent's start, and clients
	// may wait for that start.
	begin := w.cfg.Every / 3
	if tasks.Sleep(ctx, begin) == nil {
		w.measured(func() { w.open(ctx, time.Now()) })
	}
	defer w.close()
	asked := ""
	resting := rest{load: hostload.New(string(w.deps.Host.Proc)), every: w.cfg.Every}
	next := time.After(w.cfg.Every - begin)
	for {
		select {
		case <-ctx.Done():
			w.keepSample(time.Now())
			w.endStreams()
			return nil
		case <-w.asked:
			asked = slowSpinup
			continue
		case <-next:
		}
		if resting.skip(asked != "" || len(w.track.list()) > 0) {
			w.mu.Lock()
			w.status.Cost.Every = (time.Duration(resting.skipped+1) * w.cfg.Every).Seconds()
			w.mu.Unlock()
			next = time.After(w.cfg.Every)
			continue
		}
		cpu := w.measured(func() { w.round(ctx) })
		every := max(w.cfg.Every, left.spend(cpu, time.Now()))
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
		next = time.After(every)
	}
}

// measured calls do on a separate thread and returns the CPU time that it used there.
func (w *Watch) measured(do func()) time.Duration {
	cpu := threadTime(do)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status.Cost.CPU += cpu.Seconds()
	return cpu
}

// record stores the result of a round or burst and notifies subscribers.
func (w *Watch) record(l examination) {
	events := w.track.take(l)
	open := w.track.list()
	w.mu.Lock()
	w.status.Findings = open
	w.status.Cost.Lost += int64(w.track.dropped)
	w.track.dropped = 0
	w.mu.Unlock()
	for _, e := range events {
		w.logEvent(e)
		w.send(e)
	}
	w.deps.Metrics.open(open)
	w.keepEvents(events)
	if w.deps.Changed != nil {
		w.deps.Changed(open)
	}
}

// logEvent writes an event to the log.
func (w *Watch) logEvent(e Event) {
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
	if s := e.Finding.Subject; s != nil {
		attrs = append(attrs, "container", s.Container, "cgroup", s.Cgroup, "pid", s.Pid, "command", s.Command)
		if s.Pod != nil {
			attrs = append(attrs, "namespace", s.Pod.Namespace, "pod", s.Pod.Name, "workload", s.Pod.Workload)
		}
	}
	if e.Kind == Ended {
		attrs = append(attrs, "lasted", e.At.Sub(e.Since).Round(time.Second))
	}
	w.deps.Log.Log(context.Background(), level, words, attrs...)
	w.deps.Metrics.event(e)
}

// name adds names to findings. It asks the engine only if there are findings.
func (w *Watch) name(ctx context.Context, found []rule.Finding) []doctor.Finding {
	if len(found) == 0 {
		return nil
	}
	names, _ := doctor.Names(ctx, w.deps.Host.Proc, w.names, nil) // findings without names are reported, too
	list := make([]doctor.Finding, 0, len(found))
	for _, f := range found {
		list = append(list, names.Name(f))
	}
	return list
}

// namesFor is how long the engine's list of containers is cached.
const namesFor = 30 * time.Second

// engineTime bounds the wait of a round for the engine's list.
const engineTime = 3 * time.Second

// cachedEngine caches an engine's list of containers for namesFor. It is for one
// goroutine.
type cachedEngine struct {
	engine doctor.Engine
	at     time.Time
	list   []engine.Container
}

// List implements doctor.Engine. It ignores labels, because no caller here sets any.
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
