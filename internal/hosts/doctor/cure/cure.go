// Package cure carries out the doctor's cures. Without Options.Apply, a cure only reports
// what it would do: its target, the number of bytes, the gain and the risk. A cure that
// is carried out is bounded in bytes and time. It stops when the processes in its control
// group begin to stall, measures before and after, and is recorded. Before it lowers a
// limit, which would be harmful if this process died, it hands the undo to a guardian.
//
// docs/doctor-cures.md describes each cure with measurements.
package cure

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"holdfast"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/platform/linux/boottime"
)

// Cure is a cure with its target.
type Cure struct {
	Name    string
	prepare func(ctx context.Context, e Env, o Options) (prepared, error)
}

// prepared is a cure that knows its target and its plan.
type prepared struct {
	target string
	plan   Plan
	notes  []string
	// lock is the control group, by its path in the memory hierarchy, on which no other
	// cure may run at the same time; "" if there is none.
	lock string
	// root is what needs root privileges in it; "" if nothing does.
	root string
	// measure returns the figures to compare; nil: there are none.
	measure func(ctx context.Context) ([]Measure, error)
	// do carries the cure out; nil: there is nothing to do.
	do func(ctx context.Context) (result, error)
}

// result is the outcome of a cure.
type result struct {
	stopped string // why it ended early, "" if it did not
	notes   []string
}

// Env holds the dependencies of cures.
type Env struct {
	Host probe.Host
	// Guard protects lowered limits. With its zero value no limit is lowered.
	Guard Guard
	// Journal records the cures; its zero value records nothing.
	Journal Journal
	// Step, if it is not nil, is called at the beginning of each step. Tests kill this
	// process in it.
	Step func(string)
}

// Guard is the part of a guardian that cures need.
type Guard struct {
	// Arm plans to write old to the file if it still shows low, at the deadline or when
	// this process dies.
	Arm func(file, low, old string, deadline boottime.Instant) (Armed, error)
	// Guarded reports whether an earlier plan for the file still exists.
	Guarded func(file string) (bool, error)
}

// Armed is a plan that a guardian has accepted.
type Armed interface {
	Disarm() error
}

// The steps of lowering a limit, in order, as passed to Env.Step.
const (
	StepArm     = "arm"     // hand the undo to the guardian
	StepLower   = "lower"   // write the low limit, which makes the kernel reclaim
	StepRestore = "restore" // write the old limit
	StepDisarm  = "disarm"  // cancel the guardian's plan
)

func (e Env) step(s string) {
	if e.Step != nil {
		e.Step(s)
	}
}

// Options bound a cure. With the zero value the cure only reports its plan.
type Options struct {
	Apply bool
	Bytes int64         // at most; 0 is DefaultBytes
	For   time.Duration // at most; 0 is DefaultFor
	// Scheduled says in the record that an agent's schedule runs the cure.
	Scheduled bool
}

// The default bounds and their limits.
const (
	DefaultBytes = 1 << 30
	MaxBytes     = 1 << 40
	DefaultFor   = 30 * time.Second
	MaxFor       = 10 * time.Minute
)

// Plan describes what a cure would do.
type Plan struct {
	Does  []string `json:"does"`            // in order, a sentence each
	Bytes int64    `json:"bytes,omitempty"` // number of bytes concerned
	Gain  string   `json:"gain"`
	Risk  string   `json:"risk"`
	// Shows is text for the operator to use as it is: a part of a configuration, a
	// command.
	Shows []string `json:"shows,omitempty"`
}

// Measure is the value of a figure at one time. Unit is "B" or empty.
type Measure struct {
	What  string
	Unit  string
	Value float64
}

// Figure is a figure before and after a cure. Unit is "B", another unit of the doctor's
// facts, or empty.
type Figure struct {
	What   string  `json:"what"`
	Unit   string  `json:"unit,omitempty"`
	Before float64 `json:"before"`
	After  float64 `json:"after"`
}

// Report is the result of a cure.
type Report struct {
	Cure    string    `json:"cure"`
	Target  string    `json:"target,omitempty"`
	At      time.Time `json:"at"`
	Applied bool      `json:"applied"`
	Plan    Plan      `json:"plan"`
	Seconds float64   `json:"seconds,omitempty"` // duration of the cure
	Figures []Figure  `json:"figures,omitempty"`
	// Stopped is why the cure ended before all was done.
	Stopped string `json:"stopped,omitempty"`
	// Scheduled: an agent's schedule ran the cure. Host then has figures of the host, means
	// over some rounds of the agent's doctor before the cure and after it.
	Scheduled bool     `json:"scheduled,omitempty"`
	Host      []Figure `json:"host,omitempty"`
	// Harm is the harm that the cure saw while it ran, or that Host shows.
	Harm  string   `json:"harm,omitempty"`
	Notes []string `json:"notes,omitempty"`
	Error string   `json:"error,omitempty"`
}

// Errors that callers distinguish; they are wrapped.
var (
	// ErrNothing means that there is nothing to cure.
	ErrNothing = errors.New("there is nothing to cure")
	// errPressure, errLoss and errSwap end a cure early.
	errPressure = errors.New("the processes in the group began to stall on memory")
	errLoss     = errors.New("page cache of living groups began to shrink")
	errSwap     = errors.New("memory of the group began to move to swap space")
)

func (o *Options) defaults() error {
	if o.Bytes == 0 {
		o.Bytes = DefaultBytes
	}
	if o.For == 0 {
		o.For = DefaultFor
	}
	switch {
	case o.Bytes < 1<<20 || o.Bytes > MaxBytes:
		return fmt.Errorf("a bound of %d bytes: it must be from 1 MiB to 1 TiB", o.Bytes)
	case o.For < time.Second || o.For > MaxFor:
		return fmt.Errorf("a bound of %v: it must be from 1s to %v", o.For, MaxFor)
	}
	return nil
}

// Run determines what the cure would do and, with o.Apply, does it. The report is also
// valid with an error, as far as the cure got. Run returns holdfast.ErrBusy while another
// cure works on the same control group, one above it or one below it. A cure that stopped
// early is not an error: Report.Stopped has the reason.
func (c Cure) Run(ctx context.Context, e Env, o Options) (Report, error) {
	r := Report{Cure: c.Name, At: time.Now(), Scheduled: o.Scheduled}
	if err := o.defaults(); err != nil {
		return r, err
	}
	a, err := c.prepare(ctx, e, o)
	if err == nil && o.Apply && a.root != "" && os.Geteuid() != 0 {
		err = notRoot(a.root)
	}
	if err != nil {
		return r, fmt.Errorf("cure %s: %w", c.Name, err)
	}
	r.Target, r.Plan, r.Notes = a.target, a.plan, a.notes
	if !o.Apply || a.do == nil {
		return r, nil
	}
	err = c.apply(ctx, e, o, a, &r)
	if err != nil {
		err = fmt.Errorf("cure %s: %w", c.Name, err)
		r.Error = err.Error()
	}
	return r, errors.Join(err, e.Journal.end(r))
}

func (c Cure) apply(ctx context.Context, e Env, o Options, a prepared, r *Report) error {
	unlock, err := lockGroup(e.Host, a.lock)
	if err != nil {
		return err
	}
	defer unlock()
	r.At, r.Applied = time.Now(), true
	if err := e.Journal.begin(*r); err != nil {
		return err
	}
	var before []Measure
	if a.measure != nil {
		if before, err = a.measure(ctx); err != nil {
			return fmt.Errorf("measure before: %w", err)
		}
	}
	limited, cancel := context.WithTimeout(ctx, o.For)
	defer cancel()
	done, doErr := a.do(limited)
	r.Seconds, r.Stopped = time.Since(r.At).Seconds(), done.stopped
	r.Notes = append(r.Notes, done.notes...)
	switch {
	case ctx.Err() != nil:
		r.Stopped = "it was interrupted"
	case cause(doErr) != "":
		r.Stopped, doErr = cause(doErr), nil
		r.Harm = r.Stopped
	case limited.Err() != nil:
		r.Stopped, doErr = fmt.Sprintf("its bound of %v was reached", o.For), nil
	}
	if a.measure != nil {
		after, err := a.measure(context.WithoutCancel(ctx))
		if err != nil {
			return errors.Join(doErr, fmt.Errorf("measure after: %w", err))
		}
		r.Figures = compare(before, after)
	}
	return doErr
}

// cause returns the error of this package that has ended a cure early, "" if there is none.
func cause(err error) string {
	for _, early := range []error{errPressure, errLoss, errSwap} {
		if errors.Is(err, early) {
			return early.Error()
		}
	}
	return ""
}

// compare joins figures of the same name. Figures in only one of the lists are left out.
func compare(before, after []Measure) []Figure {
	var fs []Figure
	for _, b := range before {
		for _, a := range after {
			if a.What == b.What {
				fs = append(fs, Figure{What: b.What, Unit: b.Unit, Before: b.Value, After: a.Value})
			}
		}
	}
	return fs
}

// notRoot returns the error for a caller without root privileges.
func notRoot(what string) error {
	return holdfast.WithHint(fmt.Errorf("%s needs root", what), "run it with sudo")
}
