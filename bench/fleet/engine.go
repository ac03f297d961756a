package fleet

import (
	"context"
	"errors"
	"time"
)

// engineAway is the downtime of a killed engine.
const engineAway = 2 * time.Second

// loseEngine kills the engine's daemon, or restarts it as a service manager does, and
// returns when the engine answers and all agents are ready. The engine is without live
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
	for _, m := range x.nodes {
		if err := m.awaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}
