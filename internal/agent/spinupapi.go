package agent

import (
	"context"
	"time"

	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/underway"
)

func (b backend) Spinups(_ context.Context, f spinup.Filter) (list []spinup.Record, err error) {
	err = b.a.spinups.with(func(s *spinup.Store) error {
		list, err = s.List(f)
		return err
	})
	for _, r := range list {
		if r.Pull != nil {
			r.Pull.Layers = nil
		}
	}
	return list, err
}

func (b backend) Spinup(_ context.Context, id string) (r spinup.Record, err error) {
	err = b.a.spinups.with(func(s *spinup.Store) error {
		r, err = s.Get(id)
		return err
	})
	return r, err
}

func (b backend) SpinupReport(_ context.Context, q spinup.Question) (r spinup.Report, err error) {
	err = b.a.spinups.with(func(s *spinup.Store) error {
		r, err = s.Report(q, b.SlowRules())
		return err
	})
	return r, err
}

func (b backend) SlowRules() spinup.Rules { return b.a.cfg.Spinup.Slow }

func (b backend) AddSpinup(_ context.Context, r spinup.Record) error {
	r.Collected = b.a.spinups.besideDeletion(r)
	if err := b.a.spinups.with(func(s *spinup.Store) error { return s.Append(r) }); err != nil {
		return err
	}
	b.a.spinups.observe(r)
	return nil
}

func (b backend) SpinupsUnderWay(context.Context) ([]underway.Entry, error) {
	return b.a.spinups.list.Active(), nil
}

func (b backend) BeginSpinup(_ context.Context, kind, name string, life time.Duration) (underway.Entry, error) {
	return b.a.spinups.list.Begin(kind, name, life)
}

func (b backend) EndSpinup(_ context.Context, id string) error { return b.a.spinups.list.End(id) }
