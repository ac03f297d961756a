package watch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Measured is the cost of a watch in a process that does nothing else.
type Measured struct {
	Seconds float64 `json:"seconds"`
	// CPU is the CPU time of the whole process (getrusage(2)), with its garbage
	// collection and the children that it waited for. Own is the watch's own measurement.
	CPU    float64 `json:"cpu_seconds"`
	Own    float64 `json:"own_cpu_seconds"`
	Rounds int64   `json:"rounds"`
	Bursts int64   `json:"bursts"`
	MaxRSS int64   `json:"max_rss_bytes"`
	Unseen int     `json:"unseen"` // probes that could not be read
	Lost   int64   `json:"lost"`   // records that were not stored
}

// Share is the process's CPU time as a share of one core.
func (m Measured) Share() float64 {
	if m.Seconds <= 0 {
		return 0
	}
	return m.CPU / m.Seconds
}

// Measure runs a watch for the given length and returns its cost. The process must do
// nothing else meanwhile.
func Measure(ctx context.Context, cfg Config, deps Deps, length time.Duration) (Measured, error) {
	w := New(cfg, deps)
	limited, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	before, err := processTime()
	if err != nil {
		return Measured{}, err
	}
	begin := time.Now()
	if err := w.Run(limited); err != nil {
		return Measured{}, err
	}
	if ctx.Err() != nil {
		return Measured{}, ctx.Err()
	}
	m := Measured{Seconds: time.Since(begin).Seconds()}
	after, err := processTime()
	if err != nil {
		return Measured{}, err
	}
	s := w.Status()
	m.CPU, m.Own = (after - before).Seconds(), s.Cost.CPU
	m.Rounds, m.Bursts, m.Unseen, m.Lost = s.Cost.Rounds, s.Cost.Bursts, len(s.Gaps), s.Cost.Lost
	if m.Rounds == 0 {
		return m, errors.New("the measurement ended before the first round")
	}
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return m, fmt.Errorf("getrusage: %w", err)
	}
	m.MaxRSS = u.Maxrss << 10
	return m, nil
}

// processTime returns the CPU time of this process and of its children.
func processTime() (time.Duration, error) {
	var sum time.Duration
	for _, scope := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(scope, &u); err != nil {
			return 0, fmt.Errorf("getrusage: %w", err)
		}
		sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return sum, nil
}
