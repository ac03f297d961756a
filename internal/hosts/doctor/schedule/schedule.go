package schedule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/hosts/doctor/cure"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/hosts/doctor/watch"
	"holdfast/internal/platform/metric"
	"holdfast/internal/platform/tasks"
)

// State is a scheduled cure and its state.
type State struct {
	Cure   string          `json:"cure"`
	When   string          `json:"when"`
	Every  holdfast.Millis `json:"every_ms"`
	Window string          `json:"window,omitempty"` // in the local time of the agent
	Bytes  string          `json:"bytes"`            // at most in one run
	For    holdfast.Millis `json:"for_ms"`           // likewise
	DryRun bool            `json:"dry_run"`

	LastRun time.Time `json:"last_run,omitzero"`
	Outcome string    `json:"outcome,omitempty"` // of the last run
	// Waiting is why the cure does not run now.
	Waiting string `json:"waiting,omitempty"`
	// Stopped is why the schedule no longer runs the cure, "" while it does.
	Stopped   string    `json:"stopped,omitempty"`
	StoppedAt time.Time `json:"stopped_at,omitzero"`
	// WouldDo has what the last dry run found, a sentence each.
	WouldDo []string `json:"would_do,omitempty"`
}

// Doctor is the continuous examination of this host, a *watch.Watch.
type Doctor interface {
	// Summary returns the host's figures in the last round, and its time.
	Summary() (map[string]float64, time.Time)
	Status() watch.Status
}

// Deps are the dependencies of a Schedule.
type Deps struct {
	DataDir string // of the agent: the state of the schedule and the record of cures
	Doctor  Doctor
	Host    probe.Host
	Guard   cure.Guard
	Metrics prometheus.Registerer
	Log     *slog.Logger
	Every   time.Duration // between two looks at the schedule; 0: checkEvery
	// Run carries out a cure; nil: cure.Cure.Run. Tests replace it.
	Run func(context.Context, cure.Cure, cure.Options) (cure.Report, error)
}

// Schedule runs cures. Run may be called once, the other methods from any goroutine.
type Schedule struct {
	deps    Deps
	file    string // of the state
	journal cure.Journal
	runs    *prometheus.CounterVec
	rounds  rounds   // for the goroutine of Run
	pending *pending // likewise: the cure whose effect is not yet known

	mu      sync.Mutex
	entries []*entry
}

// entry is an Entry and its state.
type entry struct {
	Entry
	saved
	waiting string
	wouldDo []string
	notYet  time.Time // no attempt before
}

// pending is a cure that ended and is not judged yet.
type pending struct {
	entry   *entry
	reports []cure.Report
	before  rounds
	ended   time.Time
}

// checkEvery is the time between two looks at the schedule.
const checkEvery = 5 * time.Second

// maxGuarded is the number of runs in a row that end themselves because groups stall or
// lose page cache, after which a cure is stopped. One may be due to another load.
const maxGuarded = 2

// busyFor is the wait after another cure was in the way.
const busyFor = time.Minute

// New returns a Schedule of valid entries. It runs nothing before Run.
func New(entries []Entry, deps Deps) *Schedule {
	s := &Schedule{deps: deps, file: filepath.Join(deps.DataDir, FileName), journal: cure.Journal{Path: filepath.Join(deps.DataDir, cure.FileName)}}
	if deps.Run == nil {
		env := cure.Env{Host: deps.Host, Guard: deps.Guard, Journal: s.journal}
		s.deps.Run = func(ctx context.Context, c cure.Cure, o cure.Options) (cure.Report, error) { return c.Run(ctx, env, o) }
	}
	for _, e := range entries {
		s.entries = append(s.entries, &entry{Entry: e.filled()})
	}
	r := metric.Registry{Registerer: deps.Metrics}
	s.runs = r.CounterVec("holdfast_doctor_scheduled_cures_total", "Runs of scheduled cures, by cure and outcome (done, early, nothing, dry-run, failed, harm).", "cure", "outcome")
	metric.GaugeFunc(r, "holdfast_doctor_scheduled_cures_stopped", "Scheduled cures that are not run any more because they did harm.", s.stopped)
	return s
}

func (s *Schedule) stopped() (n int) {
	for _, st := range s.States() {
		if st.Stopped != "" {
			n++
		}
	}
	return n
}

// States returns the scheduled cures, in the order of the configuration.
func (s *Schedule) States() []State {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]State, 0, len(s.entries))
	for _, e := range s.entries {
		all = append(all, State{
			Cure: e.Cure, When: e.When, Every: holdfast.Millis(e.Every), Window: e.Window, Bytes: e.Bytes, For: holdfast.Millis(e.For), DryRun: e.DryRun,
			LastRun: e.LastRun, Outcome: e.Outcome, Waiting: e.waiting, Stopped: e.Stopped, StoppedAt: e.StoppedAt, WouldDo: slices.Clone(e.wouldDo),
		})
	}
	return all
}

// Allow lets a stopped cure run again at its next time. It returns holdfast.ErrNotFound if
// the cure is not scheduled.
func (s *Schedule) Allow(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		if e.Cure == name {
			e.Stopped, e.StoppedAt, e.Guarded = "", time.Time{}, 0
			s.deps.Log.Info("doctor: a scheduled cure is allowed again", "cure", name)
			return s.save()
		}
	}
	return holdfast.WithHint(fmt.Errorf("scheduled cure %q: %w", name, holdfast.ErrNotFound), "doctor.cures of the configuration lists those of this host")
}

// Run runs the cures until ctx is done. Its errors are in the log and in the states.
func (s *Schedule) Run(ctx context.Context) error {
	if len(s.entries) == 0 {
		<-ctx.Done()
		return nil
	}
	s.mu.Lock()
	err := s.load()
	s.mu.Unlock()
	if err != nil {
		s.deps.Log.Error("doctor: the state of the scheduled cures is not known, none runs", "err", err)
		s.wait("the state of the schedule cannot be read: " + err.Error())
		<-ctx.Done()
		return nil
	}
	return tasks.Every(ctx, cmp.Or(s.deps.Every, checkEvery), func() { s.check(ctx, time.Now()) })
}

// check judges the last cure, or runs the first one that is due.
func (s *Schedule) check(ctx context.Context, now time.Time) {
	facts, at := s.deps.Doctor.Summary()
	s.rounds = s.rounds.add(round{at, facts})
	if s.pending != nil {
		s.judge(now)
	}
	if s.pending != nil {
		s.wait("the effect of the last cure is being measured")
		return
	}
	var findings []string
	for _, f := range s.deps.Doctor.Status().Findings {
		findings = append(findings, f.Rule)
	}
	var due *entry
	s.mu.Lock()
	for _, e := range s.entries {
		e.waiting = e.why(now, findings, s.rounds)
		if e.waiting == "" && due == nil {
			due = e
		}
	}
	s.mu.Unlock()
	if due != nil {
		s.cure(ctx, due, now)
	}
}

// wait sets the reason of all entries.
func (s *Schedule) wait(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		e.waiting = why
	}
}

// why returns why an entry does not run now, "" if it does.
func (e *entry) why(now time.Time, findings []string, r rounds) string {
	w, _ := parseWindow(e.Window) // it is valid
	next := e.LastRun.Add(e.Every)
	if e.notYet.After(next) {
		next = e.notYet
	}
	switch {
	case e.Stopped != "":
		return "it is stopped"
	case now.Before(next):
		return "its next run is at " + next.In(now.Location()).Format("2006-01-02 15:04") + " or later"
	case !w.contains(now):
		return "it is outside its window"
	case e.When == WhenFinding && !slices.ContainsFunc(e.kind().rules, func(r string) bool { return slices.Contains(findings, r) }):
		return "there is no finding that it is for"
	}
	return r.hinders(now)
}

// cure runs the cure of an entry. What is needed if this process dies is saved before.
func (s *Schedule) cure(ctx context.Context, e *entry, now time.Time) {
	if err := s.change(func() { e.LastRun, e.Running, e.wouldDo = now, true, nil }); err != nil {
		s.deps.Log.Error("doctor: a scheduled cure does not run, because its start cannot be saved", "cure", e.Cure, "err", err)
		return
	}
	reports, err := e.run(func(c cure.Cure, o cure.Options) (cure.Report, error) { return s.deps.Run(ctx, c, o) }, s.deps.Host)
	outcome, harm := "done", ""
	for _, r := range reports {
		if r.Stopped != "" {
			outcome = "early"
		}
		harm = cmp.Or(harm, r.Harm)
	}
	applied := slices.ContainsFunc(reports, func(r cure.Report) bool { return r.Applied })
	busy := errors.Is(err, holdfast.ErrBusy)
	switch {
	case ctx.Err() != nil:
		outcome = "early"
	case errors.Is(err, cure.ErrNothing), err == nil && !applied && !e.DryRun:
		outcome = "nothing"
	case err != nil:
		outcome = "failed"
		s.deps.Log.Warn("doctor: a scheduled cure", "cure", e.Cure, "err", err)
	case e.DryRun:
		outcome = "dry-run"
	}
	saved := s.change(func() {
		e.Running, e.Outcome = false, outcome
		if e.Guarded++; harm == "" {
			e.Guarded = 0
		}
		if e.DryRun {
			for _, r := range reports {
				e.wouldDo = append(append(e.wouldDo, r.Plan.Does...), r.Notes...)
			}
		}
		if busy {
			e.LastRun, e.notYet = time.Time{}, now.Add(busyFor)
		}
		switch {
		case err != nil:
			e.Outcome += ": " + err.Error()
		case outcome == "nothing" && len(reports) > 0:
			e.Outcome += ": " + strings.Join(reports[0].Notes, "; ")
		}
	})
	s.logSave(saved)
	s.runs.WithLabelValues(e.Cure, outcome).Inc()
	switch {
	case e.Guarded >= maxGuarded:
		s.runs.WithLabelValues(e.Cure, "harm").Inc()
		s.stop(e, harm, now)
	case applied && ctx.Err() == nil:
		s.pending, s.rounds = &pending{entry: e, reports: reports, before: s.rounds, ended: time.Now()}, nil
	}
}

// judge compares the host before and after a cure, once there are enough rounds. The first
// round after the cure covers a part of it, and is left out.
func (s *Schedule) judge(now time.Time) {
	p := s.pending
	if len(s.rounds) < keptRounds && now.Sub(p.ended) < judgeLimit {
		return
	}
	after := s.rounds[min(1, len(s.rounds)):]
	s.pending = nil
	if len(after) < fewRounds {
		s.deps.Log.Warn("doctor: the effect of a scheduled cure is not known: the doctor had too few rounds after it", "cure", p.entry.Cure)
		return
	}
	figures, harm := compare(p.before, after)
	for _, r := range p.reports {
		r.Host, r.Harm = figures, cmp.Or(harm, r.Harm)
		if err := s.journal.Amend(r); err != nil {
			s.deps.Log.Warn("doctor: the effect of a scheduled cure", "cure", p.entry.Cure, "err", err)
		}
	}
	if harm != "" {
		s.runs.WithLabelValues(p.entry.Cure, "harm").Inc()
		s.stop(p.entry, harm, now)
	}
}

// stop makes the schedule skip an entry until it is allowed again.
func (s *Schedule) stop(e *entry, why string, now time.Time) {
	s.deps.Log.Error("doctor: a scheduled cure did harm and is not run again; `holdfast doctor cure allow` allows it", "cure", e.Cure, "harm", why)
	s.logSave(s.change(func() { e.Outcome, e.Stopped, e.StoppedAt = "harm: "+why, why, now.UTC() }))
}

// change calls do, which changes states, and saves them.
func (s *Schedule) change(do func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
	return s.save()
}

func (s *Schedule) logSave(err error) {
	if err != nil {
		s.deps.Log.Error("doctor: the state of the scheduled cures", "err", err)
	}
}
