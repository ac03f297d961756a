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
	takes     atomic.Int64 // a time.Duration
	now, most atomic.Int32
}

func (e *slowEngine) Info(ctx context.Context) (engine.Info, error) {
	e.most.Store(max(e.most.Load(), e.now.Add(1)))
	defer e.now.Add(-1)
	select {
	case <-time.After(time.Duration(e.takes.Load())):
		return engine.Info{}, nil
	case <-ctx.Done():
		return engine.Info{}, ctx.Err()
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
