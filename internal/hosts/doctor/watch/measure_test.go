package watch

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The watch runs on this host with all its probes.
func TestMeasure(t *testing.T) {
	c := DefaultConfig()
	c.Every = time.Second
	var m measured
	err := errors.New("not measured")
	// On a busy machine the first round may take long.
	for length := 5 * time.Second; err != nil && length < time.Minute; length *= 3 {
		m, err = measure(t.Context(), c, Deps{Host: here(t), Log: quiet(), Store: NewStore(t.TempDir(), c.Keep, quiet())}, length)
	}
	if err != nil {
		t.Fatal(err)
	}
	if m.rounds < 1 || m.seconds <= 0 || m.cpu <= 0 || m.own <= 0 || m.maxRSS <= 0 || m.lost != 0 {
		t.Errorf("%+v", m)
	}
	t.Logf("%+v: %.2f %% of one core", m, 100*m.cpu/m.seconds)
}

// measured is the cost of a watch in a process that does nothing else.
type measured struct {
	seconds float64
	// cpu is the CPU time of the whole process (getrusage(2)), with its garbage
	// collection and the children that it waited for. own is the watch's own measurement.
	cpu    float64
	own    float64
	rounds int64
	bursts int64
	maxRSS int64 // bytes
	gaps   int   // probes that could not be read
	lost   int64 // records that were not stored
}

// measure runs a watch for the given length and returns its cost. The process must do
// nothing else meanwhile.
func measure(ctx context.Context, cfg Config, deps Deps, length time.Duration) (measured, error) {
	w := New(cfg, deps)
	limited, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	before, err := processTime()
	if err != nil {
		return measured{}, err
	}
	begin := time.Now()
	if err := w.Run(limited); err != nil {
		return measured{}, err
	}
	if ctx.Err() != nil {
		return measured{}, ctx.Err()
	}
	m := measured{seconds: time.Since(begin).Seconds()}
	after, err := processTime()
	if err != nil {
		return measured{}, err
	}
	s := w.Status()
	m.cpu, m.own = (after - before).Seconds(), s.Cost.CPU
	m.rounds, m.bursts, m.gaps, m.lost = s.Cost.Rounds, s.Cost.Bursts, len(s.Gaps), s.Cost.Lost
	if m.rounds == 0 {
		return m, errors.New("the measurement ended before the first round")
	}
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return m, fmt.Errorf("getrusage: %w", err)
	}
	m.maxRSS = u.Maxrss << 10
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
