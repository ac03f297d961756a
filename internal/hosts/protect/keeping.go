package protect

import (
	"context"
	"time"
)

// keeping is a hold that stands, in the keeper.
type keeping struct {
	*server
	sockets *Sockets
	held    Held
	start   time.Time
	limit   time.Duration // the longest that it may last
	overlap bool          // the old server stays for what it has accepted
	ready   *readiness
}

const (
	// look is how often the listeners are looked at: 0.1 ms of work.
	look = 2 * time.Millisecond
	// releaseLimit is how long a paced release may take; the rest goes at
	// once then.
	releaseLimit = 10 * time.Second
)

// run keeps the hold until there is a reason to release, and releases.
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
				reason = StarterGone // it is of no use any more
			}
			if reason != "" {
				return k.release(reason)
			}
		case now := <-tick.C:
			if reason := k.look(now); reason != "" {
				return k.release(reason)
			}
		}
	}
}

// remains is how much of the limit is left.
func (k *keeping) remains() time.Duration { return time.Until(k.start.Add(k.limit)) }

// handle does what is asked during a hold.
func (k *keeping) handle(r request) (Reason, error) {
	switch r.Op {
	case opDrain:
		// Nothing else is looked at meanwhile, the hold's end neither.
		d, err := k.sockets.Drain(min(r.Limit, k.remains()), k.overlap, k.gone)
		if err != nil { // then the stop is as hard as without us
			k.log.Warn("protect: drain", "err", err)
		}
		return "", k.answer(answer{Op: opDrain, Drained: &d})
	case opExited:
		k.ready.exit(r.Killed, time.Now())
	case opRelease:
		return AskedFor, nil
	default:
		return "", k.answer(answer{Op: r.Op, Error: "there is a hold already"})
	}
	return "", nil
}

// look judges by who listens now.
func (k *keeping) look(now time.Time) Reason {
	ls, err := k.sockets.Listeners()
	if err != nil {
		return "" // the limit ends the hold
	}
	return k.ready.judge(ls, now)
}

// release ends the hold and tells how it was.
func (k *keeping) release(why Reason) error {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), releaseLimit)
	defer cancel()
	if why == StarterGone {
		cancel() // at once
	}
	err := k.held.Release(ctx)
	r := Released{
		Reason: why, Stats: k.held.Stats(), Took: time.Since(begin), Held: time.Since(k.start),
		Listening: k.listening(),
	}
	if err != nil {
		r.Error = err.Error()
		k.log.Warn("protect: release", "err", err)
	}
	if why == StarterGone {
		k.log.Warn("protect: let all connections go", "because", string(why))
		return nil
	}
	return k.answer(answer{Op: opReleased, Released: &r})
}

func (k *keeping) listening() bool {
	ls, err := k.sockets.Listeners()
	return err == nil && len(ls) > 0
}
