package agent

import (
	"holdfast/internal/hosts/spinup"
)

// List implements api.Spinups.
func (s *spinups) List(f spinup.Filter) (list []spinup.Record, err error) {
	err = s.with(func(store *spinup.Store) error {
		list, err = store.List(f)
		return err
	})
	for _, r := range list {
		if r.Pull != nil {
			r.Pull.Layers = nil
		}
	}
	return list, err
}

// Get implements api.Spinups.
func (s *spinups) Get(id string) (r spinup.Record, err error) {
	err = s.with(func(store *spinup.Store) error {
		r, err = store.Get(id)
		return err
	})
	return r, err
}

// Report implements api.Spinups.
func (s *spinups) Report(q spinup.Question) (r spinup.Report, err error) {
	err = s.with(func(store *spinup.Store) error {
		r, err = store.Report(q, s.cfg.Slow)
		return err
	})
	return r, err
}

// Rules implements api.Spinups.
func (s *spinups) Rules() spinup.Rules { return s.cfg.Slow }

// Add implements api.Spinups.
func (s *spinups) Add(r spinup.Record) error {
	r.Collected = s.besideDeletion(r)
	if err := s.with(func(store *spinup.Store) error { return store.Append(r) }); err != nil {
		return err
	}
	s.observe(r)
	return nil
}
