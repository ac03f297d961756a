package e2b

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
	"holdfast/internal/control/e2b/envd"
	"holdfast/internal/platform/frame"
	"holdfast/internal/platform/tasks"
)

// follow sends the events of a command from an offset of its output on, until it has ended.
// If the session is on another node whose agent is replaced meanwhile, it goes on with the
// next one.
func (d *Server) follow(ctx context.Context, s sandbox, c holdfast.Command, from int64, ping time.Duration, send func(*envd.ProcessEvent) error) error {
	f := &follower{send: send, tty: c.TTY}
	if err := f.event(&envd.ProcessEvent{Event: &envd.ProcessEvent_Start{Start: &envd.ProcessEvent_StartEvent{Pid: pidOf(c.ID)}}}); err != nil {
		return err
	}
	alive, stop := context.WithCancel(ctx)
	var pinging sync.WaitGroup
	pinging.Go(func() { f.keepAlive(alive, ping) })
	code, err := d.attach(ctx, s, c, from, f)
	stop()
	pinging.Wait()
	switch {
	case err == nil && code != 0 && !d.lives(context.WithoutCancel(ctx), s):
		return ended(s.ID) // which killed the command
	case err == nil:
		return f.event(endOf(code))
	case ctx.Err() != nil:
		return ctx.Err()
	case f.failed != nil:
		return f.failed
	case !d.lives(context.WithoutCancel(ctx), s):
		return ended(s.ID)
	}
	return err
}

// attach copies the output of a command, and attaches again if the agent is replaced.
func (d *Server) attach(ctx context.Context, s sandbox, c holdfast.Command, from int64, f *follower) (int, error) {
	next := from
	var lostAt time.Time
	for {
		code, err := d.o.Agent.Attach(ctx, s.key(), c.ID, api.AttachRequest{Offset: next, Hold: true},
			api.Exec{Stdout: followed{f, false}, Stderr: followed{f, true}}, func(p frame.Position) {
				next, lostAt = p.Offset, time.Time{}
				if p.Lost > 0 {
					f.lost(p.Lost)
				}
			})
		if err == nil || !errors.Is(err, client.ErrUnreachable) || f.failed != nil {
			return code, err
		}
		if lostAt.IsZero() {
			lostAt = time.Now()
		}
		if time.Since(lostAt) > reattachLimit {
			return code, err
		}
		if tasks.Sleep(ctx, 100*time.Millisecond) != nil {
			return code, ctx.Err()
		}
	}
}

// follower sends events of one process.
type follower struct {
	mu     sync.Mutex
	send   func(*envd.ProcessEvent) error
	tty    bool
	failed error // the caller is gone
}

func (f *follower) event(e *envd.ProcessEvent) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failed == nil {
		f.failed = f.send(e)
	}
	return f.failed
}

// lost tells the caller that output is missing.
func (f *follower) lost(n int64) {
	_ = f.event(output(f.tty, true, fmt.Appendf(nil, "\n[holdfast: %d bytes of output lost]\n", n))) // the next event fails, too
}

// keepAlive sends an event at an interval, so that nothing in between closes an idle
// connection.
func (f *follower) keepAlive(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			_ = f.event(&envd.ProcessEvent{Event: &envd.ProcessEvent_Keepalive{Keepalive: &envd.ProcessEvent_KeepAlive{}}}) // the output fails, too
		}
	}
}

// followed writes one stream of a process.
type followed struct {
	f      *follower
	stderr bool
}

func (o followed) Write(p []byte) (int, error) {
	if err := o.f.event(output(o.f.tty, o.stderr, p)); err != nil {
		return 0, err
	}
	return len(p), nil
}
