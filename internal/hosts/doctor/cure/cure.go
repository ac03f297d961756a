// Package cure carries out what the doctor advises. A cure looks first, and says
// what it would do, to whom, how many bytes it is about, what is to be gained and
// what is risked. Carried out, it is bounded in bytes and time, breaks off when
// those who live in its control group begin to suffer, measures before and after,
// and is written down. What would hurt if this process died in the middle, a
// limit that is lowered, is in a guardian's hands before.
//
// docs/doctor-cures.md has each cure with its figures.
package cure

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/platform/linux/boottime"
)

// Cure is one cure with its target.
type Cure struct {
	Name    string
	prepare func(ctx context.Context, e Env, o Options) (act, error)
}

// act is a cure that has looked.
type act struct {
	target string
	plan   Plan
	notes  []string
	// locks are control groups, by their paths in the memory hierarchy, that
	// nobody else may cure meanwhile.
	locks []string
	// measure gives the figures that are compared; nil: there are none.
	measure func(ctx context.Context) ([]Measure, error)
	// do carries it out. nil: there is nothing to be done.
	do func(ctx context.Context) (result, error)
}

// result is how it ended, for people.
type result struct {
	stopped string // why it ended early, "" where it did not
	notes   []string
}

// Env is what cures work with.
type Env struct {
	Host probe.Host
	// Guard stands behind limits that are lowered. Its zero value is none: then
	// none is.
	Guard Guard
	// Journal keeps what was done; its zero value keeps nothing.
	Journal Journal
	// Step is told each step as it begins; nil is nobody. Tests kill this very
	// process in it.
	Step func(string)
}

// Guard is a guardian as cures need one.
type Guard struct {
	// Arm has it write old back to the file, if that shows low, at the deadline
	// or when this process dies.
	Arm func(file, low, old string, deadline boottime.Instant) (Armed, error)
	// Guarded reports whether an earlier plan for the file still stands.
	Guarded func(file string) (bool, error)
}

// Armed is a plan that a guardian has taken on.
type Armed interface {
	Disarm() error
}

// The steps of lowering a limit, in their order, as Env.Step is told.
const (
	StepArm     = "arm"     // hand the undo to the guardian
	StepLower   = "lower"   // write the low limit, on which the kernel reclaims
	StepRestore = "restore" // write the old one
	StepDisarm  = "disarm"  // tell the guardian
)

func (e Env) step(s string) {
	if e.Step != nil {
		e.Step(s)
	}
}

// Options bound a cure. The zero value is a look, with the defaults.
type Options struct {
	Apply bool
	Bytes int64         // at most; 0 is DefaultBytes
	For   time.Duration // at most; 0 is DefaultFor
}

// The bounds where nothing else is asked for, and how far they go.
const (
	DefaultBytes = 1 << 30
	MaxBytes     = 1 << 40
	DefaultFor   = 30 * time.Second
	MaxFor       = 10 * time.Minute
)

// Plan is what a cure would do.
type Plan struct {
	Does  []string `json:"does"`            // in order, a sentence each
	Bytes int64    `json:"bytes,omitempty"` // that it is about
	Gain  string   `json:"gain"`
	Risk  string   `json:"risk"`
	// Shows is text to be used as it is: a piece of configuration, a command.
	Shows []string `json:"shows,omitempty"`
}

// Measure is one figure at one time. Unit is "B" or empty.
type Measure struct {
	What  string
	Unit  string
	Value float64
}

// Figure is one figure before and after.
type Figure struct {
	What   string  `json:"what"`
	Unit   string  `json:"unit,omitempty"`
	Before float64 `json:"before"`
	After  float64 `json:"after"`
}

// Report is what became of a cure.
type Report struct {
	Cure    string    `json:"cure"`
	Target  string    `json:"target,omitempty"`
	At      time.Time `json:"at"`
	Applied bool      `json:"applied"`
	Plan    Plan      `json:"plan"`
	Seconds float64   `json:"seconds,omitempty"` // that it took
	Figures []Figure  `json:"figures,omitempty"`
	// Stopped says why it ended before all was done.
	Stopped string   `json:"stopped,omitempty"`
	Notes   []string `json:"notes,omitempty"`
	Error   string   `json:"error,omitempty"`
}

// Errors that callers decide by; they come wrapped.
var (
	// ErrNothing means that there is nothing to cure.
	ErrNothing = errors.New("there is nothing to cure")
	// errPressure and errLoss end a cure early.
	errPressure = errors.New("those who live there began to stall for memory")
	errLoss     = errors.New("the page cache of the living began to go")
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
		return fmt.Errorf("a bound of %d bytes: it has to be from 1 MiB to 1 TiB", o.Bytes)
	case o.For < time.Second || o.For > MaxFor:
		return fmt.Errorf("a bound of %v: it has to be from 1s to %v", o.For, MaxFor)
	}
	return nil
}

// Run looks what the cure would do and, with o.Apply, does it. The report is there
// also beside an error, as far as it came. holdfast.ErrBusy while another cure
// works on the same control group, one above it or below it. One that was broken
// off half way is no error: Report.Stopped says so.
func (c Cure) Run(ctx context.Context, e Env, o Options) (Report, error) {
	r := Report{Cure: c.Name, At: time.Now()}
	if err := o.defaults(); err != nil {
		return r, err
	}
	a, err := c.prepare(ctx, e, o)
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

func (c Cure) apply(ctx context.Context, e Env, o Options, a act, r *Report) error {
	unlock, err := lockGroups(e.Host, a.locks)
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
	case errors.Is(doErr, errPressure), errors.Is(doErr, errLoss):
		r.Stopped, doErr = cause(doErr), nil
	case limited.Err() != nil:
		r.Stopped, doErr = fmt.Sprintf("its time of %v was up", o.For), nil
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

// cause is the innermost of our own reasons.
func cause(err error) string {
	if errors.Is(err, errLoss) {
		return errLoss.Error()
	}
	return errPressure.Error()
}

// compare joins figures of the same name; what is in one list only is left out.
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

// notRoot is what is said to who may not.
func notRoot(what string) error {
	return holdfast.WithHint(fmt.Errorf("%s needs root", what), "run it with sudo")
}
