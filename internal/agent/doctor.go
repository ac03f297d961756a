package agent

import (
	"context"
	"errors"
	"fmt"

	"holdfast"
	"holdfast/internal/agent/process"
	"holdfast/internal/control/api"
	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/rotation"
	"holdfast/internal/hosts/doctor/service"
	"holdfast/internal/platform/store"
	"holdfast/internal/sessions/drain"
)

// newDoctor returns the doctor, or nil if it is switched off.
func (a *Agent) newDoctor(e doctor.Engine) *service.Doctor {
	c := a.cfg.Doctor
	if !c.Watch.Enabled {
		return nil
	}
	d := service.New(service.Options{
		Node: a.node, Kernel: process.KernelRelease(c.Proc), Role: c.Role, DataDir: a.cfg.DataDir, Proc: c.Proc, Sys: c.Sys, Alloc: a.opt.Alloc,
		Watch: c.Watch, Rotation: c.Rotation, Engine: e, Host: rotating{a}, Cures: c.Cures, Guard: a.cureGuard.Cures(),
		Store: func() store.Store { return a.store }, Lease: func() store.LeaseID { return a.lease.ID() },
		Spinups: a.spinups.Figures, Metrics: a.metrics, Log: a.log,
	})
	a.spinups.Suspect = d.Suspect
	return d
}

// hostDoctor implements api.Doctor.
type hostDoctor struct {
	*service.Doctor
	a *Agent
}

// Status implements api.Doctor. Resting follows the store's list of nodes; if the
// store does not answer, Resting is false.
func (h hostDoctor) Status(ctx context.Context) (api.DoctorStatus, error) {
	c := h.a.cfg.Doctor
	s := api.DoctorStatus{Status: h.Doctor.Status(), Node: h.a.node, Kernel: process.KernelRelease(c.Proc), Role: c.Role}
	if s.Degraded, s.DegradedSince = h.Rotation.Degraded(); s.Degraded != "" && h.a.fleet != nil {
		if all, err := h.a.store.Nodes(ctx); err == nil {
			s.Resting = holdfast.OutOfRotation(all, c.Rotation.MaxShare)[h.a.node]
		}
	}
	return s, nil
}

// rotating is the node as the doctor's rotation acts on it.
type rotating struct{ a *Agent }

var _ rotation.Node = rotating{}

func (r rotating) Fleet(ctx context.Context) ([]holdfast.Node, error) { return r.a.store.Nodes(ctx) }
func (r rotating) Changed()                                           { r.a.lease.Changed() }
func (r rotating) Refuses() bool                                      { return r.a.sessions.Draining() }
func (r rotating) Return() error                                      { return r.a.drainer.ClaimAgain() }

// turnNote is the note in the store with the node whose turn it is to drain.
const turnNote = "doctor/drain"

// Turn implements rotation.Node: it takes the turn of the fleet, under this node's
// lease. A node without other nodes has no turn.
func (r rotating) Turn(ctx context.Context) (func(context.Context) error, bool, error) {
	lease := r.a.lease.ID()
	if r.a.fleet == nil || lease == 0 {
		return nil, false, nil
	}
	n, err := r.a.store.TakeNote(ctx, turnNote, []byte(r.a.node), lease)
	if errors.Is(err, store.ErrTaken) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	return func(ctx context.Context) error { return r.a.store.DropNote(ctx, n) }, true, nil
}

// Drain implements rotation.Node. If the agent ends during a drain, the drain is
// completed: the final drain waits for it.
func (r rotating) Drain(ctx context.Context) error {
	c := r.a.cfg.Drain
	report := r.a.drainer.Drain(context.WithoutCancel(ctx), drain.Options{Budget: c.Budget, PauseEngine: c.PauseEngine}, func(holdfast.Step) {})
	if !report.Clean() {
		return fmt.Errorf("%w: %d containers, %d sessions", ErrLeft, len(report.Left), report.Owned-report.Released)
	}
	return nil
}
