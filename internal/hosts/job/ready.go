package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/readiness"
	"holdfast/internal/platform/tasks"
)

// Polling of a service that is not ready: it starts at firstPoll and continues at
// a tenth of the time waited, so that polling adds at most a tenth to the start.
const (
	firstPoll   = 5 * time.Millisecond
	longestPoll = 500 * time.Millisecond
	probeLimit  = 5 * time.Second // for one answer
)

// errEnded means that a service's container has exited.
var errEnded = errors.New("it exited before it was ready")

// awaitReady returns when the service is ready. On a timeout the error has the
// result of the last probe that the limit did not end.
func (u *containerStart) awaitReady(ctx context.Context) error {
	limit := cmp.Or(time.Duration(u.image.Ready.Timeout), DefaultReadyTimeout)
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	begun := time.Now()
	var last error
	for {
		// The address is read each time, because an exited container has none.
		c, err := u.Engine.Inspect(limited, u.id)
		switch {
		case err == nil && !c.Running():
			return fmt.Errorf("%w, with exit code %d", errEnded, c.ExitCode)
		case errors.Is(err, holdfast.ErrNotFound):
			return fmt.Errorf("%w: it was removed", errEnded)
		case err == nil:
			err = u.probe(limited, c)
		}
		if err == nil {
			return nil
		}
		if limited.Err() == nil {
			last = err
		} else if last == nil { // the error of a check that the limit ends would blame the engine
			last = errors.New("its first check has not ended")
		}
		if tasks.Sleep(limited, min(max(firstPoll, time.Since(begun)/10), longestPoll)) != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return holdfast.WithHint(fmt.Errorf("not ready after %v: %w", limit, last), "check the service's ready: key, or raise ready.timeout")
		}
	}
}

// probe checks the service once.
func (u *containerStart) probe(ctx context.Context, c engine.Container) error {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	r := u.image.Ready
	if len(r.Command) > 0 {
		code, err := u.Engine.Exec(ctx, u.id, engine.Exec{Command: r.Command})
		if err == nil && code != 0 {
			err = fmt.Errorf("the ready command exits with code %d", code)
		}
		return err
	}
	if len(c.Addresses) == 0 {
		return errors.New("the container has no address")
	}
	return readiness.Probe(ctx, net.Dialer{}, net.JoinHostPort(c.Addresses[0], strconv.Itoa(r.Port)), r.HTTP)
}
