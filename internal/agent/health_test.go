package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/sessions/runtimes"
)

// slowEngine answers after a time, and counts the requests in progress.
type slowEngine struct {
	engine.Engine
	takes        atomic.Int64 // a time.Duration
	now, most    atomic.Int32
	pings, infos atomic.Int32
}

func (e *slowEngine) Ping(ctx context.Context) error {
	e.pings.Add(1)
	return e.answer(ctx)
}

func (e *slowEngine) Info(ctx context.Context) (engine.Info, error) {
	e.infos.Add(1)
	return engine.Info{}, e.answer(ctx)
}

func (e *slowEngine) answer(ctx context.Context) error {
	e.most.Store(max(e.most.Load(), e.now.Add(1)))
	defer e.now.Add(-1)
	select {
	case <-time.After(time.Duration(e.takes.Load())):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Probes of an engine that takes 30 s end with an error that names it, and make one request
// at a time.
func TestProbesOfASlowEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		e := &slowEngine{}
		e.takes.Store(int64(30 * time.Second))
		h := &health{engine: e, works: runtimes.New(nil, true, nil, prometheus.NewRegistry(), log), log: log}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- h.Run(ctx) }()
		const probes = 100
		ends := make(chan error, probes)
		begun := time.Now()
		for range probes {
			go func() { ends <- h.Answers(t.Context(), probeTimeout) }()
		}
		for range probes {
			if err := <-ends; !errors.Is(err, holdfast.ErrEngine) || holdfast.HintOf(err) == "" {
				t.Errorf("%v (%s)", err, holdfast.HintOf(err))
			}
		}
		if took := time.Since(begun); took != probeTimeout || e.most.Load() != 1 {
			t.Errorf("the probes took %v, with up to %d requests at once", took, e.most.Load())
		}
		time.Sleep(healthEvery + healthTimeout)
		if h.Trouble() == "" {
			t.Error("the node has no trouble")
		}
		e.takes.Store(int64(time.Second))
		time.Sleep(2*healthTimeout + healthEvery)
		if err := h.Answers(t.Context(), probeTimeout); err != nil || h.Trouble() != "" {
			t.Errorf("an engine that answers again: %v, %s", err, h.Trouble())
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestWholeEngine: the engine is asked for its description once in wholeEvery, and after an error
// until it answers.
func TestWholeEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		e := &slowEngine{}
		h := &health{engine: e, works: runtimes.New(nil, true, nil, prometheus.NewRegistry(), log), log: log}
		check := func(after time.Duration, pings, infos int32, trouble bool) {
			t.Helper()
			e.pings.Store(0)
			e.infos.Store(0)
			for end := time.Now().Add(after); time.Now().Before(end); time.Sleep(healthEvery) {
				h.check(t.Context())
			}
			if p, i := e.pings.Load(), e.infos.Load(); p != pings || i != infos || (h.Trouble() != "") != trouble {
				t.Errorf("%d pings, %d infos, trouble %q; want %d, %d and %v", p, i, h.Trouble(), pings, infos, trouble)
			}
		}
		check(wholeEvery, 5, 1, false)
		check(2*wholeEvery, 10, 2, false)
		check(healthEvery, 0, 1, false)
		e.takes.Store(int64(time.Hour)) // each check takes healthTimeout
		check(3*(healthEvery+healthTimeout), 1, 2, true)
		e.takes.Store(0)
		check(2*healthEvery, 1, 1, false)
	})
}
