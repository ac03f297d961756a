//go:build !amd64

package rig

import (
	"errors"
	"time"
)

// Clock changes CLOCK_REALTIME of one process. It exists on amd64 only.
type Clock struct{}

// OpenClock returns an error on this architecture.
func OpenClock(int) (*Clock, error) {
	return nil, errors.New("the clock of one process can be set on amd64 only")
}

// Shift cannot be called, because there is no Clock.
func (*Clock) Shift(time.Duration) error { return errors.ErrUnsupported }

// Restore cannot be called, because there is no Clock.
func (*Clock) Restore() error { return errors.ErrUnsupported }
