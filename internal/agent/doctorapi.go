package agent

import (
	"context"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/hosts/doctor/ranking"
	"holdfast/internal/hosts/doctor/watch"
)

// hostDoctor implements api.Doctor.
type hostDoctor struct {
	*watch.Watch
	a *Agent
}

// Status implements api.Doctor. Resting follows the store's list of nodes; if the
// store does not answer, Resting is false.
func (h hostDoctor) Status(ctx context.Context) (api.DoctorStatus, error) {
	d := h.a.doctor
	s := api.DoctorStatus{Status: d.watch.Status(), Node: h.a.node, Kernel: d.kernel, Role: h.a.cfg.Doctor.Role}
	if s.Degraded, s.DegradedSince = d.rotation.Degraded(); s.Degraded != "" && h.a.fleet != nil {
		if all, err := h.a.store.Nodes(ctx); err == nil {
			s.Resting = holdfast.OutOfRotation(all, h.a.cfg.Doctor.Rotation.MaxShare)[h.a.node]
		}
	}
	return s, nil
}

// Ranking implements api.Doctor.
func (h hostDoctor) Ranking(ctx context.Context, by ranking.By) (ranking.Ranking, error) {
	all, err := h.a.fleetHealth(ctx)
	if err != nil {
		return ranking.Ranking{}, err
	}
	return ranking.Rank(all, by), nil
}
