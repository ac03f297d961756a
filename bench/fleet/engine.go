package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// engineAway is the downtime of a killed engine.
const engineAway = 2 * time.Second

// loseEngine kills the engine's daemon, or restarts it as a service manager does, and
// returns when the engine answers, all agents are ready and all sessions are served again. The engine is without live
// restore, which is Docker's default: it ends all containers, when it ends or when it
// starts again after a kill.
func (x *experiment) loseEngine(ctx context.Context, act Act) error {
	x.probe.mu.Lock() // a probe would fail
	defer x.probe.mu.Unlock()
	var err error
	if act == EngineKilled {
		err = x.lab.Kill()
		sleep(ctx, engineAway)
	} else {
		err = x.lab.StopDaemon()
	}
	if err = errors.Join(err, x.lab.StartDaemon(ctx)); err != nil {
		return err
	}
	return x.awaitAll(ctx)
}

// awaitAll returns when all agents are ready and the records show all sessions as served.
// After an act that ends all sessions, what clients notice until then is its cost.
func (x *experiment) awaitAll(ctx context.Context) error {
	for _, m := range x.nodes {
		if err := m.awaitReady(ctx); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, backLimit)
	defer cancel()
	for {
		n := len(x.observer.owned(""))
		if n >= x.o.Sessions {
			return nil
		}
		if !sleep(ctx, 50*time.Millisecond) {
			return fmt.Errorf("%d of %d sessions are served again: %w", n, x.o.Sessions, ctx.Err())
		}
	}
}
