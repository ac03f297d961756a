package agent

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"holdfast/internal/platform/engine"
)

const (
	healthEvery   = 5 * time.Second
	healthTimeout = 10 * time.Second // an engine under load is slow, not ill
)

// health knows whether this node should get new sessions.
type health struct {
	engine engine.Engine
	log    *slog.Logger
	astray bool // the containers' network could not be looked after at the last look

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
	} else if err := h.lookAtNet(); err != nil {
		trouble = fmt.Sprintf("its containers' way out of the host cannot be kept up: %v", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trouble = trouble
}

// lookAtNet is why the containers' network could not be looked after last, where the
// engine has one of its own. It logs when that changes.
func (h *health) lookAtNet() error {
	n, ok := h.engine.(ownNet)
	if !ok {
		return nil
	}
	_, err := n.Upkeep()
	switch {
	case err != nil && !h.astray:
		h.log.Error("the way of containers out of this host cannot be kept up (tried again every ten seconds)", "err", err)
	case err == nil && h.astray:
		h.log.Info("the way of containers out of this host is kept up again")
	}
	h.astray = err != nil
	return err
}

// Trouble is why the node should get no new session, "" for none.
func (h *health) Trouble() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.trouble
}
