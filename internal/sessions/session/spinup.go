package session

import (
	"context"

	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
)

// Spinups receives the spin-ups of sessions: one for each container, with the pull of
// its image if there was one. Any goroutine may call its methods. They return at once.
type Spinups interface {
	// Cohort returns the present cohort of the engine.
	Cohort() spinup.Cohort
	// Begin registers a spin-up in progress until end is called.
	Begin(kind spinup.Kind, name string) (end func())
	// Record stores a finished spin-up.
	Record(r spinup.Record)
}

// noSpinups is a Spinups that discards everything.
type noSpinups struct{}

func (noSpinups) Cohort() spinup.Cohort            { return spinup.Cohort{} }
func (noSpinups) Begin(spinup.Kind, string) func() { return func() {} }
func (noSpinups) Record(spinup.Record)             {}

// beginSpinup starts to time the spin-up of a container.
func (b *attempt) beginSpinup(spec engine.Spec) {
	b.spinup = spinup.NewTimer(spinup.ForSession, spec.Image, b.m.deps.Spinups.Cohort())
	b.spinup.Job(string(b.e.key))
	b.spinup.Template(b.e.template.Name)
	b.spinup.Container("", spec.Name)
}

// endSpinup records the boot's present spin-up. A boot that failed between two
// containers counts as a failure of the session's own container. A cancelled boot, or
// one whose session another node owns, is not a failure.
func (b *attempt) endSpinup(ctx context.Context, err error) {
	switch {
	case b.spinup != nil:
	case err == nil || b.owner.Epoch == 0: // it is already recorded, or nothing was started
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
