package gc

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// counter is spin-ups that a test begins and ends.
type counter struct {
	mu      sync.Mutex
	n       int
	since   time.Time
	changed chan struct{}
}

func newCounter() *counter { return &counter{since: time.Now(), changed: make(chan struct{})} }

func (c *counter) add(by int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.n
	c.n += by
	if before == 0 || c.n == 0 {
		c.since = time.Now()
	}
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *counter) UnderWay() (int, time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n, c.since
}

func (c *counter) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

func TestGateOpensWhenNothingSpinsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounter()
		g := &gate{spinups: c, stats: newStats(), critical: func() bool { return false }}
		c.add(2)
		go func() {
			time.Sleep(3 * time.Second)
			c.add(-1)
			time.Sleep(3 * time.Second)
			c.add(-1)
		}()
		waited, forced, err := g.wait(t.Context(), atLeast(0))
		if waited != 6*time.Second || forced || err != nil {
			t.Errorf("%v, %v, %v", waited, forced, err)
		}
		// An idle time of 2 s is required; a spin-up begins after 1 s.
		go func() {
			time.Sleep(time.Second)
			c.add(1)
			time.Sleep(time.Second)
			c.add(-1)
		}()
		if waited, _, _ := g.wait(t.Context(), atLeast(2*time.Second)); waited != 4*time.Second {
			t.Errorf("waited %v", waited)
		}
	})
}

func TestGateOpensOnACriticalDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounter()
		c.add(1)
		begin := time.Now()
		g := &gate{spinups: c, stats: newStats(), critical: func() bool { return time.Since(begin) > 5*time.Second }}
		waited, forced, err := g.wait(t.Context(), atLeast(0))
		if !forced || err != nil || waited > 7*time.Second {
			t.Errorf("%v, %v, %v", waited, forced, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		g.critical = func() bool { return false }
		if _, forced, err := g.wait(ctx, atLeast(0)); forced || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, %v", forced, err)
		}
	})
}

func TestGateLearnsFromGaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounter()
		a := newStats()
		g := &gate{spinups: c, stats: a, critical: func() bool { return false }}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = g.Run(ctx) })
		synctest.Wait()
		for range 30 {
			time.Sleep(2 * time.Second)
			c.add(1)
			synctest.Wait()
			time.Sleep(time.Second)
			c.add(-1)
			synctest.Wait()
		}
		cancel()
		running.Wait()
		gaps := a.now().Gaps
		if len(gaps) != 30 || gaps[29] != 2*time.Second {
			t.Errorf("%v", gaps)
		}
	})
}

// begins checks for how much longer a deletion waits after an idle time.
func begins(t *testing.T, s *stats, locked, idle, want time.Duration) {
	t.Helper()
	if got := s.pauseFor(locked)(idle); got != want {
		t.Errorf("a deletion of %v after an idle time of %v waits for %v more, want %v", locked, idle, got, want)
	}
}

func TestPauseIsLearnt(t *testing.T) {
	a := newStats()
	begins(t, a, 100*time.Millisecond, 0, 0)
	begins(t, a, 5*time.Second, 0, 5*time.Second)
	begins(t, a, time.Hour, 0, longestQuiet)
	// Jobs come in bursts: ten within a second of each other, then a minute of nothing.
	for i := range 200 {
		gap := time.Second
		if i%10 == 0 {
			gap = time.Minute
		}
		a.observeGap(gap)
	}
	begins(t, a, 500*time.Millisecond, 0, 0) // fits between any two
	begins(t, a, 500*time.Millisecond, 600*time.Millisecond, 400*time.Millisecond+1)
	begins(t, a, 3*time.Second, 0, time.Second+1) // after an idle second it should be the pause
	begins(t, a, 3*time.Second, 10*time.Second, 0)
	begins(t, a, 3*time.Second, 58*time.Second, 0) // longer than any wait
	// A spin-up every two seconds: a longer deletion never fits.
	b := newStats()
	for range 200 {
		b.observeGap(2 * time.Second)
	}
	begins(t, b, 3*time.Second, 0, 2*time.Second+1)
	begins(t, b, time.Second, 0, 0)
	begins(t, b, time.Second, 1500*time.Millisecond, 500*time.Millisecond+1)
}

func TestShortDeletionNeedNotFit(t *testing.T) {
	// Of the gaps three in ten are shorter than the deletion.
	a := newStats()
	for i := range 200 {
		gap := 200 * time.Millisecond
		if i%10 < 3 {
			gap = 50 * time.Millisecond
		}
		a.observeGap(gap)
	}
	begins(t, a, 120*time.Millisecond, 0, 50*time.Millisecond+1) // when it is one of the long gaps
	begins(t, a, 120*time.Millisecond, 60*time.Millisecond, 0)
	begins(t, a, 120*time.Millisecond, 100*time.Millisecond, 100*time.Millisecond+1)
	// Every gap is shorter: it begins with the gap.
	b := newStats()
	for range 200 {
		b.observeGap(100 * time.Millisecond)
	}
	begins(t, b, 120*time.Millisecond, 0, 0)
	begins(t, b, 5*time.Millisecond, 90*time.Millisecond, 0) // nothing notices it
}

func TestRatesAreLearnt(t *testing.T) {
	r := newStats()
	if guess := r.guess(tally{Names: 20_000, Linked: 20_000}, 0); guess != 200*time.Millisecond {
		t.Errorf("linked %v", guess)
	}
	if guess := r.guess(tally{Names: 20_000}, 0); guess != 8*time.Second {
		t.Errorf("plain %v", guess)
	}
	if guess := r.guess(tally{}, 16<<20); guess != 1024*400*time.Microsecond {
		t.Errorf("by bytes %v", guess)
	}
	for range 50 {
		r.learn(tally{Names: 1000}, time.Second)
		r.learn(tally{Names: 10}, time.Hour) // too few names for a rate
	}
	if guess := r.guess(tally{Names: 2000}, 0); guess < 1900*time.Millisecond || guess > 2100*time.Millisecond {
		t.Errorf("after learning %v", guess)
	}
}
