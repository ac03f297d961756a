package agent

import (
	"context"
	"fmt"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/hosts/doctor/baseline"
	"holdfast/internal/hosts/doctor/profile"
	"holdfast/internal/hosts/doctor/ranking"
	"holdfast/internal/hosts/doctor/recordings"
	"holdfast/internal/hosts/doctor/watch"
)

// doctor is the agent's, an error where it is switched off.
func (b backend) doctor() (*doctorPart, error) {
	if b.a.doctor == nil {
		return nil, holdfast.WithHint(fmt.Errorf("the agent's doctor is switched off: %w", holdfast.ErrNotFound), "set doctor.enabled; holdfast doctor looks without it")
	}
	return b.a.doctor, nil
}

// DoctorStatus implements api.Doctor. Whether the node rests is as the store has the
// fleet; where it does not answer, nobody knows of it.
func (b backend) DoctorStatus(ctx context.Context) (api.DoctorStatus, error) {
	d, err := b.doctor()
	if err != nil {
		return api.DoctorStatus{}, err
	}
	s := api.DoctorStatus{Status: d.watch.Status(), Node: b.a.node, Kernel: d.kernel, Role: b.a.cfg.Doctor.Role}
	if s.Degraded, s.DegradedSince = d.rotation.Degraded(); s.Degraded != "" && b.a.fleet != nil {
		if all, err := b.a.store.Nodes(ctx); err == nil {
			s.Resting = holdfast.OutOfRotation(all, b.a.cfg.Doctor.Rotation.MaxShare)[b.a.node]
		}
	}
	return s, nil
}

// DoctorHistory implements api.Doctor.
func (b backend) DoctorHistory(_ context.Context, since time.Time, limit int) (watch.History, error) {
	d, err := b.doctor()
	if err != nil {
		return watch.History{}, err
	}
	return d.watch.History(since, limit)
}

// DoctorEvents implements api.Doctor.
func (b backend) DoctorEvents(ctx context.Context) (<-chan watch.Event, error) {
	d, err := b.doctor()
	if err != nil {
		return nil, err
	}
	return d.watch.Events(ctx)
}

// DoctorFleet implements api.Doctor.
func (b backend) DoctorFleet(ctx context.Context, by ranking.By) (ranking.Ranking, error) {
	if _, err := b.doctor(); err != nil {
		return ranking.Ranking{}, err
	}
	all, err := b.a.fleetHealth(ctx)
	if err != nil {
		return ranking.Ranking{}, err
	}
	return ranking.Rank(all, by), nil
}

// Baselines implements api.Doctor.
func (b backend) Baselines(ctx context.Context) ([]baseline.Baseline, error) {
	if _, err := b.doctor(); err != nil {
		return nil, err
	}
	return b.a.baselines(ctx)
}

// SaveBaseline implements api.Doctor.
func (b backend) SaveBaseline(ctx context.Context, x baseline.Baseline) error {
	if _, err := b.doctor(); err != nil {
		return err
	}
	return b.a.saveBaseline(ctx, x)
}

// RemoveBaseline implements api.Doctor.
func (b backend) RemoveBaseline(ctx context.Context, name string) error {
	if _, err := b.doctor(); err != nil {
		return err
	}
	return b.a.removeBaseline(ctx, name)
}

// Recordings implements api.Recorder.
func (b backend) Recordings(context.Context) ([]recordings.Recording, error) {
	d, err := b.doctor()
	if err != nil {
		return nil, err
	}
	return d.recordings.List()
}

// Recording implements api.Recorder.
func (b backend) Recording(_ context.Context, id string) (*profile.Profile, error) {
	d, err := b.doctor()
	if err != nil {
		return nil, err
	}
	return d.recordings.Open(id)
}

// Record implements api.Recorder.
func (b backend) Record(ctx context.Context, length time.Duration, container string) (recordings.Recording, error) {
	d, err := b.doctor()
	if err != nil {
		return recordings.Recording{}, err
	}
	return d.recordings.Record(ctx, length, container)
}
