package session

import (
	"context"

	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
)

// Spinups is told of the spin-ups of sessions: one for each container, with its
// image's pull where there had to be one. Its methods may be called from any
// goroutine and return at once.
type Spinups interface {
	// Cohort is what the engine is now.
	Cohort() spinup.Cohort
	// Begin says that a spin-up is under way, until end is called.
	Begin(kind spinup.Kind, name string) (end func())
	// Record keeps one that has ended.
	Record(r spinup.Record)
}

// noSpinups is a Spinups that nobody listens to.
type noSpinups struct{}

func (noSpinups) Cohort() spinup.Cohort            { return spinup.Cohort{} }
func (noSpinups) Begin(spinup.Kind, string) func() { return func() {} }
func (noSpinups) Record(spinup.Record)             {}

// beginSpinup begins to time the spin-up of a container.
func (b *attempt) beginSpinup(spec engine.Spec) {
	b.spinup = spinup.NewTimer(spinup.ForSession, spec.Image, b.m.deps.Spinups.Cohort())
	b.spinup.Job(string(b.e.key))
	b.spinup.Container("", spec.Name)
}

// endSpinup records the spin-up that the boot is at. A boot that failed between
// two containers counts as a failure of the session's own, which will not come
// up; one that was called off, or whose session is elsewhere, is no failure.
func (b *attempt) endSpinup(ctx context.Context, err error) {
	switch {
	case b.spinup != nil:
	case err == nil || b.owner.Epoch == 0: // it is recorded, or nothing was begun
		return
	default:
		b.beginSpinup(b.e.template.spec(b.owner))
	}
	r := b.spinup.End(err)
	b.spinup = nil
	if err != nil && (context.Cause(ctx) != nil || elsewhere(err)) {
		r.Outcome, r.Cause = spinup.Stopped, spinup.Canceled
	}
	b.m.deps.Spinups.Record(r)
}
