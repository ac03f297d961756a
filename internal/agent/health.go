package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"holdfast/internal/engine"
)

const (
	healthEvery   = 5 * time.Second
	healthTimeout = 10 * time.Second // an engine under load is slow, not ill
)

// health knows whether this node should get new sessions.
type health struct {
	engine engine.Engine

	mu      sync.Mutex
	trouble string
}

// Run looks after the engine until ctx is done.
func (h *health) Run(ctx context.Context) error {
	tick := time.NewTicker(healthEvery)
	defer tick.Stop()
	for {
		h.look(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (h *health) look(ctx context.Context) {
	asking, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	_, err := h.engine.Info(asking)
	if ctx.Err() != nil {
		return
	}
	trouble := ""
	if err != nil {
		trouble = fmt.Sprintf("its engine does not answer: %v", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trouble = trouble
}

// Trouble is why the node should get no new session, "" for none.
func (h *health) Trouble() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.trouble
}
