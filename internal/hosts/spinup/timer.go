package spinup

import (
	"context"
	"errors"
	"time"

	"holdfast"
)

// Timer times one spin-up and makes its record. It is used by one goroutine.
//
//	t := spinup.NewTimer(spinup.ForRun, image, cohort)
//	pull, err := spinup.Reduce(…)
//	t.Pulled(pull)
//	err = t.Time(spinup.Create, func() error { … })
//	record := t.End(err)
type Timer struct {
	record Record
	begun  time.Time // with the monotonic clock
	at     Phase     // of the last phase that failed
}

// NewTimer begins a spin-up now.
func NewTimer(kind Kind, image string, c Cohort) *Timer {
	now := time.Now()
	return &Timer{begun: now, record: NewRecord(kind, image, now, c)}
}

// NewRecord starts the record of a spin-up timed elsewhere that began at the
// given time.
func NewRecord(kind Kind, image string, begun time.Time, c Cohort) Record {
	return Record{
		ID: newID(begun), Kind: kind, Image: image, Begun: begun.UTC().Round(0), Cohort: c,
		Times: map[Phase]holdfast.Millis{},
	}
}

// Job sets the job of the record.
func (t *Timer) Job(job string) { t.record.Job = job }

// Template sets the template of a session's record.
func (t *Timer) Template(name string) { t.record.Template = name }

// Pulled sets the figures of the image's pull. For an image that was present they
// are Pull{Cached: true, Done: true}.
func (t *Timer) Pulled(p Pull) {
	t.record.Pull = &p
	t.record.Digest = p.Digest
	if p.Cached {
		return
	}
	if p.Download.Wall > 0 {
		t.record.Times[Download] = p.Download.Wall
	}
	if p.Extract.Wall > 0 {
		t.record.Times[Extract] = p.Extract.Wall
	}
	if !p.Done {
		t.at = Download
		if l, ok := p.Stuck(); ok && l.State == Extracting {
			t.at = Extract
		}
	}
}

// Time runs do as a phase and returns its error. The durations of a repeated
// phase are added.
func (t *Timer) Time(phase Phase, do func() error) error {
	begun := time.Now()
	err := do()
	t.Took(phase, time.Since(begun), err)
	return err
}

// Took records a phase that was timed elsewhere.
func (t *Timer) Took(phase Phase, d time.Duration, err error) {
	t.record.Times[phase] += holdfast.Millis(max(d, 0))
	if err != nil {
		t.at = phase
	}
}

// Container sets the container.
func (t *Timer) Container(id, name string) { t.record.Container, t.record.Name = id, name }

// End ends the spin-up and returns its record. err is why it failed.
func (t *Timer) End(err error) Record {
	r := t.record
	r.Took = holdfast.Millis(time.Since(t.begun))
	r.Outcome, r.Cause = OK, causeIn(t.at, err)
	if err != nil {
		r.Outcome, r.Error, r.Failed = Failed, err.Error(), t.at
		if errors.Is(err, context.Canceled) {
			r.Outcome = Stopped
		}
	}
	return r
}
