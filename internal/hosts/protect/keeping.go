package protect

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"time"
)

// keeping is a hold in progress, in the keeper.
type keeping struct {
	*server
	spec    Spec
	sockets *Sockets
	held    Held
	start   time.Time
	ready   *readiness
	trials  *trials
	asker   *asker // nil: the new server is not asked
	why     Reason // to release, once the new server is ready

	number int      // of the last program
	ended  chan ran // programs
}

const (
	// look is the interval at which the listeners are checked; one check takes
	// 0.1 ms.
	look = 2 * time.Millisecond
	// releaseLimit limits a paced release; after it the rest is released at once.
	releaseLimit = 10 * time.Second
)

// run keeps the hold until there is a reason to release it, and releases it.
func (k *keeping) run() error {
	end := time.NewTimer(k.remains())
	defer end.Stop()
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		select {
		case <-k.gone:
			return k.release(StarterGone)
		case <-end.C:
			return k.release(TimeUp)
		case r := <-k.requests:
			reason, err := k.handle(r)
			if err != nil {
				reason = StarterGone // the connection to the starter is unusable
			}
			if reason != "" {
				return k.release(reason)
			}
		case r := <-k.asker.replies():
			// The server that answered may have ended since.
			if k.asker.heard(r, time.Now()) && k.why != "" && maps.Equal(r.of, k.ready.last) {
				return k.release(k.why)
			}
		case now := <-tick.C:
			if reason := k.look(now); reason != "" {
				return k.release(reason)
			}
		}
	}
}

// remains returns the rest of the limit.
func (k *keeping) remains() time.Duration { return time.Until(k.start.Add(k.spec.Limit)) }

// handle executes a request during a hold.
func (k *keeping) handle(r request) (Reason, error) {
	switch r.Op {
	case opDrain:
		// Nothing else is checked during a drain, not even the end of the hold.
		d, err := k.sockets.Drain(min(r.Limit, k.remains()), k.spec.Overlap, k.gone, r.Settled...)
		if err != nil { // then the server stops as it would without protect
			k.log.Warn("protect: drain", "err", err)
		}
		return "", k.answer(answer{Op: opDrain, Drained: d})
	case opExited:
		k.ready.exit(r.Killed, time.Now())
	case opRelease:
		return AskedFor, nil
	case opRan:
		select {
		case k.ended <- r.Ran:
		default: // no program is awaited
		}
	default:
		return "", k.answer(answer{Op: r.Op, Error: "a hold is already in progress"})
	}
	return "", nil
}

// look decides by the current listeners.
func (k *keeping) look(now time.Time) Reason {
	ls, err := k.sockets.Listeners()
	if err != nil {
		return "" // the limit ends the hold
	}
	reason := k.ready.judge(ls, now)
	if reason == NewListens && k.trials.hold(k.ready.fresh(ls)) {
		return ""
	}
	if k.asker == nil || reason == CommandKill {
		return reason
	}
	if k.why = reason; reason != "" {
		k.asker.try(ls, now)
	}
	return ""
}

// program makes the starter run the program of its check, and waits for its end. It is
// called from the asker's goroutine.
func (k *keeping) program(ctx context.Context, at netip.AddrPort) error {
	k.number++
	if err := k.answer(answer{Op: opRun, Run: run{k.number, at}}); err != nil {
		return err
	}
	for {
		select {
		case r := <-k.ended:
			if r.Number != k.number {
				continue // an earlier one, which was late
			}
			if r.Error != "" {
				return errors.New(r.Error)
			}
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// release ends the hold and reports its result.
func (k *keeping) release(why Reason) error {
	asked := k.asker.end()
	begin := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), releaseLimit)
	defer cancel()
	if why == StarterGone {
		cancel() // at once
	}
	err := k.held.Release(ctx)
	r := Released{
		Reason: why, Stats: k.held.Stats(), Took: time.Since(begin), Held: time.Since(k.start),
		Listening: k.sockets.listening(), Ready: asked,
	}
	if d, ok := k.held.(HeldDatagrams); ok {
		stats := d.Datagrams()
		r.Datagrams = &stats
		if wait := d.Linger(); wait != nil {
			k.sockets.lent = true
			k.linger = append(k.linger, func() { wait(); k.sockets.Close() })
		}
	}
	if err != nil {
		r.Error = err.Error()
		k.log.Warn("protect: release", "err", err)
	}
	if why == StarterGone {
		k.log.Warn("protect: all connections are released", "because", string(why))
		return nil
	}
	return k.answer(answer{Op: opReleased, Released: r})
}
