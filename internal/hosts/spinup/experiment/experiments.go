package experiment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/store"
	"holdfast/internal/platform/tasks"
)

// Names of the notes of experiments.
const (
	recordNotes = "experiments/"
	judgeNote   = "experiments-judge"
)

const (
	readEvery  = 15 * time.Second // until a stop is known to all nodes
	judgeEvery = time.Minute
	judgeLimit = 30 * time.Second // of the statistics of the fleet
	maxWhy     = 256              // bytes
)

// Config is the configuration of Experiments.
type Config struct {
	Node  holdfast.NodeID
	Specs []Spec // with different names
}

// Deps are the dependencies of Experiments.
type Deps struct {
	Store store.Notes
	Lease func() store.LeaseID // the node's present lease; 0: none
	// Report answers a question about the spin-ups of all nodes.
	Report  func(context.Context, spinup.Question) (spinup.FleetReport, error)
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Experiments are the experiments of one node's configuration. Any goroutine may call its
// methods.
type Experiments struct {
	cfg  Config
	deps Deps
	seen atomic.Pointer[map[string]record]
}

// record is an experiment in the store.
type record struct {
	Begun   time.Time `json:"begun"`
	Stopped time.Time `json:"stopped,omitzero"`
	Why     string    `json:"why,omitempty"`
}

// New returns Experiments that are all pending.
func New(cfg Config, deps Deps) *Experiments {
	e := &Experiments{cfg: cfg, deps: deps}
	e.seen.Store(&map[string]record{})
	for _, s := range cfg.Specs {
		deps.Metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "holdfast_experiment_running", Help: "1 while an experiment runs, as this node knows it; 0 before and after, by experiment.",
			ConstLabels: prometheus.Labels{"experiment": s.Name},
		}, func() float64 {
			if e.state(s.Name) == holdfast.ExperimentRunning {
				return 1
			}
			return 0
		}))
	}
	return e
}

// Run reads the records of the experiments, and judges the experiments if no other node
// does, until ctx is done.
func (e *Experiments) Run(ctx context.Context) error {
	var judged time.Time
	return tasks.Every(ctx, readEvery, func() {
		if len(e.cfg.Specs) == 0 {
			return
		}
		if err := e.begin(ctx); err != nil && ctx.Err() == nil {
			e.deps.Log.Debug("the records of experiments cannot be read (will be tried again)", "err", err)
			return
		}
		if time.Since(judged) >= judgeEvery && e.turn(ctx) {
			judged = time.Now()
			e.judgeAll(ctx)
		}
	})
}

// begin reads the records, and writes those of new experiments.
func (e *Experiments) begin(ctx context.Context) error {
	for _, s := range e.cfg.Specs {
		if _, ok := (*e.seen.Load())[s.Name]; ok {
			continue
		}
		value, err := json.Marshal(record{Begun: time.Now().UTC()})
		if err != nil {
			return err
		}
		if _, err := e.deps.Store.TakeNote(ctx, recordNotes+s.Name, value, 0); err != nil && !errors.Is(err, store.ErrTaken) {
			return err
		}
	}
	return e.read(ctx)
}

func (e *Experiments) read(ctx context.Context) error {
	notes, err := e.deps.Store.ListNotes(ctx, recordNotes)
	if err != nil {
		return err
	}
	now := map[string]record{}
	for _, n := range notes {
		var r record
		if err := json.Unmarshal(n.Value, &r); err != nil {
			return fmt.Errorf("record %s: %w", n.Name, err)
		}
		now[n.Name[len(recordNotes):]] = r
	}
	e.seen.Store(&now)
	return nil
}

// turn reports whether this node judges. The node that took the note first does, until its
// lease ends.
func (e *Experiments) turn(ctx context.Context) bool {
	lease := e.deps.Lease()
	if lease == 0 {
		return false
	}
	n, err := e.deps.Store.TakeNote(ctx, judgeNote, []byte(e.cfg.Node), lease)
	return err == nil || errors.Is(err, store.ErrTaken) && string(n.Value) == string(e.cfg.Node)
}

// judgeAll stops the running experiments whose treatment is worse.
func (e *Experiments) judgeAll(ctx context.Context) {
	for _, s := range e.cfg.Specs {
		if e.state(s.Name) != holdfast.ExperimentRunning {
			continue
		}
		r, err := e.Report(ctx, s.Name)
		if err != nil {
			if ctx.Err() == nil {
				e.deps.Log.Warn("an experiment cannot be judged (will be tried again)", "experiment", s.Name, "err", err)
			}
			continue
		}
		for _, v := range r.Verdicts {
			if !v.Worse {
				continue
			}
			why := "the treatment is worse: " + v.String()
			e.deps.Log.Warn("an experiment is stopped", "experiment", s.Name, "why", why)
			if err := e.Stop(ctx, s.Name, why); err != nil {
				e.deps.Log.Warn("an experiment cannot be stopped (will be tried again)", "experiment", s.Name, "err", err)
			}
			break
		}
	}
}

// String returns the verdict as text: "failed 5 of 20, control 1 of 200".
func (v Verdict) String() string {
	what := v.Measure
	if what != Failed {
		what = "slow " + what
	}
	return fmt.Sprintf("%s %d of %d, control %d of %d", what, v.Treatment.Hits, v.Treatment.Count, v.Control.Hits, v.Control.Count)
}

// Template returns the template that a session boots from, given the requested one.
func (e *Experiments) Template(key holdfast.SessionKey, template string) string {
	for _, s := range e.cfg.Specs {
		if s.By != BySession || template != s.Template && template != s.With {
			continue
		}
		if e.state(s.Name) == holdfast.ExperimentRunning && s.Arm(string(key)) == holdfast.Treatment {
			return s.With
		}
		return s.Template
	}
	return template
}

// Arms returns the arms of a spin-up on this node, by the names of the running experiments.
// It is nil if there is none.
func (e *Experiments) Arms(r spinup.Record) map[string]string {
	var out map[string]string
	for _, s := range e.cfg.Specs {
		arm := s.armOf(r, e.cfg.Node)
		if arm == "" || e.state(s.Name) != holdfast.ExperimentRunning {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[s.Name] = string(arm)
	}
	return out
}

func (e *Experiments) state(name string) holdfast.ExperimentState {
	r, ok := (*e.seen.Load())[name]
	switch {
	case !ok:
		return holdfast.ExperimentPending
	case !r.Stopped.IsZero():
		return holdfast.ExperimentStopped
	}
	return holdfast.ExperimentRunning
}

// List returns the experiments of the configuration, as this node knows them.
func (e *Experiments) List() []holdfast.Experiment {
	out := make([]holdfast.Experiment, 0, len(e.cfg.Specs))
	for _, s := range e.cfg.Specs {
		out = append(out, e.describe(s))
	}
	return out
}

func (e *Experiments) describe(s Spec) holdfast.Experiment {
	r := (*e.seen.Load())[s.Name]
	x := holdfast.Experiment{
		Name: s.Name, By: s.By, Template: s.Template, With: s.With, Share: s.Share,
		State: e.state(s.Name), Begun: r.Begun, Stopped: r.Stopped, Why: r.Why,
	}
	if s.By == ByNode && x.State == holdfast.ExperimentRunning {
		x.NodeArm = s.Arm(string(e.cfg.Node))
	}
	return x
}

// Report is an experiment with the spin-ups of its arms.
type Report struct {
	holdfast.Experiment
	// Fleet has one group for each arm.
	Fleet spinup.FleetReport `json:"fleet"`
	// Verdicts are the measures by which the experiment is stopped.
	Verdicts []Verdict `json:"verdicts"`
	// ErrorRate is the probability of ever stopping an experiment whose treatment is not
	// worse.
	ErrorRate float64 `json:"error_rate"`
}

// Report asks all nodes about the spin-ups of an experiment. holdfast.ErrNotFound.
func (e *Experiments) Report(ctx context.Context, name string) (Report, error) {
	s, err := e.find(name)
	if err != nil {
		return Report{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, judgeLimit)
	defer cancel()
	x := e.describe(s)
	// The records have no arm before the experiment began.
	fleet, err := e.deps.Report(ctx, spinup.Question{By: spinup.ByArm, Filter: spinup.Filter{Experiment: name, Since: x.Begun}})
	if err != nil {
		return Report{}, fmt.Errorf("the spin-ups of experiment %s: %w", name, err)
	}
	return NewReport(x, fleet), nil
}

// NewReport judges the spin-ups of an experiment, which are grouped by arm.
func NewReport(x holdfast.Experiment, fleet spinup.FleetReport) Report {
	return Report{
		Experiment: x, Fleet: fleet, ErrorRate: errorRate,
		Verdicts: judge(group(fleet, holdfast.Control), group(fleet, holdfast.Treatment)),
	}
}

func (e *Experiments) find(name string) (Spec, error) {
	for _, s := range e.cfg.Specs {
		if s.Name == name {
			return s, nil
		}
	}
	return Spec{}, holdfast.WithHint(fmt.Errorf("experiment %.64q: %w", name, holdfast.ErrNotFound),
		"`holdfast experiment ls` lists the experiments of the agent's configuration")
}

// Stop stops an experiment for good, on all nodes. The other nodes know it within 15 s. A
// stopped experiment stays as it is. holdfast.ErrNotFound, holdfast.ErrStore.
func (e *Experiments) Stop(ctx context.Context, name, why string) error {
	if _, err := e.find(name); err != nil {
		return err
	}
	if err := e.begin(ctx); err != nil {
		return fmt.Errorf("stopping experiment %s: %w", name, err)
	}
	_, err := store.ChangeNote(ctx, e.deps.Store, recordNotes+name, func(r *record) error {
		if r.Stopped.IsZero() {
			r.Stopped, r.Why = time.Now().UTC(), why[:min(len(why), maxWhy)]
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("stopping experiment %s: %w", name, err)
	}
	return e.read(ctx)
}
