package sleep

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast"
	"holdfast/bench"
)

const (
	// bar is the memory that sessionsOfBar suspended sessions may use, in bytes.
	bar           = 50e6
	sessionsOfBar = 1000
	// atOnce is how many sessions start and are suspended at a time.
	atOnce = 4
	// starts is how often a session is started, if its boot fails.
	starts = 3
	// pollMany is the time between two looks at one of many sessions.
	pollMany = 250 * time.Millisecond
	// wakes is how many sockets get a message at the end.
	wakes = 10
)

// host measures the memory of the agent, of the engine and of what both started: without a
// session, with many that are suspended, and with an idle WebSocket to each of them. At the
// end some sockets get a message.
//
// Score is the bar divided by the growth without sockets. Failed counts wrong messages
// and failed boots, and one more if the growth is above the bar.
func (x *experiment) host(ctx context.Context) (r bench.Result, err error) {
	info, err := x.engine.Info(ctx)
	if err != nil {
		return r, err
	}
	stages, err := x.stages(ctx)
	if err == nil {
		err = x.wakeSome(ctx)
	}
	if err != nil {
		return r, err
	}
	x.hangUp()
	return x.hostResult(bench.EngineMachine(info), stages), nil
}

// hostResult is the result of the stages, which are without a session, without sockets and
// with sockets.
func (x *experiment) hostResult(m bench.Machine, stages []Stage) bench.Result {
	n, refused := x.o.Sessions, int(x.refused.Load())
	grown, held, most := stages[1].total()-stages[0].total(), stages[2].total()-stages[0].total(), allowed(n)
	echo := bench.NewRow("asleep: message to its echo", "ms", x.woken)
	r := bench.Result{Name: "sleep", Machine: m, Rows: []bench.Row{echo}, Failed: x.failed + refused, Details: Host{Stages: stages}}
	r.Score, r.Scale = most/max(grown, 1), fmt.Sprintf("%.0f MB ÷ the growth with %d suspended sessions", most/1e6, n)
	each := func(bytes float64) string {
		return fmt.Sprintf("%.1f MB, %.1f KB for each", bytes/1e6, bytes/1e3/float64(n))
	}
	r.Notes = []string{
		fmt.Sprintf("with %d suspended sessions all processes grew by %s", n, each(grown)),
		fmt.Sprintf("with a WebSocket each they grew by %s", each(held)),
		fmt.Sprintf("a message on one of these had its echo after %.0f ms (p50 of %d)", echo.P50, echo.N),
	}
	if refused > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("%d boots failed and were tried again", refused))
	}
	if grown > most {
		r.Failed++
		r.Notes = append(r.Notes, fmt.Sprintf("the growth is above %.0f MB", most/1e6))
	}
	return r
}

// allowed is the memory that n sessions may use, in bytes. The bar does not shrink below
// sessionsOfBar, because engine and agent grow by some MB with their first sessions.
func allowed(n int) float64 { return bar * float64(max(n, sessionsOfBar)) / sessionsOfBar }

// stages takes the three looks at the host.
func (x *experiment) stages(ctx context.Context) (all []Stage, err error) {
	// The first session loads code and fills caches that later ones share.
	if err := x.suspended(ctx, "first", false); err != nil {
		return nil, err
	}
	if _, err := x.api.StopSession(ctx, "first"); err != nil {
		return nil, err
	}
	x.sockets = make([]*socket, x.o.Sessions)
	for _, stage := range []struct {
		name string
		fill func(context.Context) error
	}{
		{"no session", func(context.Context) error { return nil }},
		{fmt.Sprintf("%d suspended", x.o.Sessions), func(ctx context.Context) error { return x.suspendAll(ctx, false) }},
		{"with a WebSocket each", func(ctx context.Context) error { return x.suspendAll(ctx, true) }},
	} {
		fmt.Fprintln(x.o.Progress, stage.name)
		if err := stage.fill(ctx); err != nil {
			return nil, err
		}
		if err := x.pause(ctx); err != nil {
			return nil, err
		}
		s, err := x.look(ctx, stage.name)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

func keyOf(i int) holdfast.SessionKey { return holdfast.SessionKey(fmt.Sprintf("s%d", i)) }

// suspendAll starts all sessions, or connects a socket to each, and returns when all are
// suspended.
func (x *experiment) suspendAll(ctx context.Context, connect bool) error {
	group, ctxGroup := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i := range x.o.Sessions {
		if i%100 == 0 {
			fmt.Fprintf(x.o.Progress, "%d of %d sessions\n", i, x.o.Sessions)
		}
		group.Go(func() (err error) {
			if connect {
				if x.sockets[i], err = dial(ctxGroup, ctx, x.gateway, keyOf(i)); err != nil {
					return err
				}
			}
			return x.suspended(ctxGroup, keyOf(i), connect)
		})
	}
	return group.Wait()
}

// suspended starts a session, unless a client has, and waits until it is suspended.
func (x *experiment) suspended(ctx context.Context, key holdfast.SessionKey, started bool) error {
	if !started {
		if err := x.start(ctx, key); err != nil {
			return err
		}
	}
	return x.until(ctx, "session "+string(key)+" is suspended", pollMany, func(ctx context.Context) bool {
		s, err := x.api.Session(ctx, key)
		return err == nil && s.State == holdfast.IsSuspended
	})
}

// start starts a session. A boot that fails counts, and is tried again.
func (x *experiment) start(ctx context.Context, key holdfast.SessionKey) (err error) {
	for range starts {
		if _, err = x.api.StartSession(ctx, key, ""); err == nil || ctx.Err() != nil {
			return err
		}
		fmt.Fprintf(x.o.Progress, "FAILED: session %s: %v\n", key, err)
		x.refused.Add(1)
	}
	return err
}

// wakeSome sends a message on some sockets and waits for each echo.
func (x *experiment) wakeSome(ctx context.Context) error {
	for _, i := range rand.Perm(len(x.sockets))[:min(wakes, len(x.sockets))] {
		begun := time.Now()
		if err := x.sockets[i].say(ctx); err != nil {
			return err
		}
		if err := x.sockets[i].await(ctx); err != nil {
			return err
		}
		x.woken = append(x.woken, float64(time.Since(begun).Microseconds())/1e3)
	}
	return nil
}
