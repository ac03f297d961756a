package fleet

import (
	"context"
	"errors"
	"fmt"

	"holdfast"
)

// keyLookup is what somebody looks for. Those who want another template look for
// themselves: it may be one that no node has.
type keyLookup struct {
	key      holdfast.SessionKey
	template string // "" for none in particular
}

// call is the one search for a session's place that all who want the same on
// this node wait for.
type call struct {
	keyLookup
	done   chan struct{}
	cancel context.CancelFunc

	// Guarded by Fleet.mu:

	waiting int
	reason  error // why it waits, nil while there is hope
	err     error // how it ended; once done is closed
}

// Acquire returns where the session is served, and has it booted somewhere in
// the fleet where it is not. It waits until the session is ready or ctx is done.
// A connection to a session on this node is counted until release is called; a
// route elsewhere is counted there. Errors: a *holdfast.BootError,
// holdfast.ErrStopped, holdfast.ErrDraining where there is no other node, and
// when ctx is done first holdfast.ErrBusy, ErrDraining, ErrStore or ErrEngine,
// where that was the reason to wait, else ctx's.
func (f *Fleet) Acquire(ctx context.Context, key holdfast.SessionKey) (holdfast.Route, func(), error) {
	return f.acquire(ctx, key, "")
}

// Start is Acquire without staying connected, of a session that is to be booted
// from the template where it is not there yet; "" is the one that it had last,
// or the default one. It returns where the session is. Errors: as Acquire's, and
// holdfast.ErrNotFound where no node has the template.
func (f *Fleet) Start(ctx context.Context, key holdfast.SessionKey, template string) (holdfast.Route, error) {
	r, release, err := f.acquire(ctx, key, template)
	if err == nil {
		release()
	}
	return r, err
}

func (f *Fleet) acquire(ctx context.Context, key holdfast.SessionKey, template string) (holdfast.Route, func(), error) {
	for {
		// What waits or has failed on this node hides no route: another
		// node may have won the claim meanwhile.
		if r, ok := f.remote(key); ok {
			return r, func() {}, nil
		}
		r, release, err := f.join(ctx, key)
		if err == nil {
			return r, release, nil
		}
		if ctx.Err() != nil || final(err) && !f.dir.ownedElsewhere(key) {
			return holdfast.Route{}, nil, err
		}
		f.learn(err)
		if r, ok := f.remote(key); ok {
			return r, func() {}, nil
		}
		if err := f.find(ctx, keyLookup{key, template}); err != nil {
			return holdfast.Route{}, nil, err
		}
	}
}

// join is Local's, but does not wait for this node once the directory knows that
// the session is another's. What is ready here it returns in any case: the
// directory may lag.
func (f *Fleet) join(ctx context.Context, key holdfast.SessionKey) (holdfast.Route, func(), error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	follow := f.dir.Follow(key)
	go func() {
		defer follow.Close()
		for {
			s, changed := follow.Look()
			if s.Known && s.Owner.Node != f.cfg.Node {
				cancel()
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return f.deps.Local.Join(ctx, key)
}

// Refused tells that the route could not be reached, or that the node there
// would not have the request. The next Acquire looks past the cache.
func (f *Fleet) Refused(key holdfast.SessionKey, r holdfast.Route) {
	if r.Node == "" || r.Node == f.cfg.Node {
		f.deps.Local.Refused(key, r)
		return
	}
	f.dir.MarkSuspect(key, r.Epoch)
}

// remote is the route to a session that is ready on another node, as far as the
// directory knows.
func (f *Fleet) remote(key holdfast.SessionKey) (holdfast.Route, bool) {
	o, left, ok := f.dir.served(key)
	if !ok || o.Node == f.cfg.Node {
		return holdfast.Route{}, false
	}
	n, ok := f.nodes.get(o.Node)
	if !ok || n.PeerAddress == "" {
		return holdfast.Route{}, false
	}
	return holdfast.Route{Key: key, Node: o.Node, Address: n.PeerAddress, Epoch: o.Epoch, Left: left}, true
}

// find waits for the search for a session, which it begins if nobody has. nil
// means: look again.
func (f *Fleet) find(ctx context.Context, what keyLookup) error {
	fl, err := f.joinCall(what)
	if err != nil {
		return err
	}
	select {
	case <-fl.done:
		return fl.err
	case <-ctx.Done():
		return f.leaveCall(ctx, fl)
	}
}

// joinCall joins the search for a session, or begins it.
func (f *Fleet) joinCall(what keyLookup) (*call, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fl := f.calls[what]
	if fl == nil {
		life := f.tasks.Context()
		if life == nil {
			return nil, f.errNotRunning()
		}
		ctx, cancel := context.WithCancel(life)
		fl = &call{keyLookup: what, done: make(chan struct{}), cancel: cancel}
		f.calls[what] = fl
		f.tasks.Go(func(context.Context) {
			err := newResolver(f, fl).run(ctx)
			cancel()
			f.finishCall(fl, err)
		})
	}
	fl.waiting++
	return fl, nil
}

// finishCall ends a search.
func (f *Fleet) finishCall(fl *call, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.calls[fl.keyLookup] == fl {
		delete(f.calls, fl.keyLookup)
	}
	if errors.Is(err, context.Canceled) && f.ended() {
		err = f.errNotRunning()
	}
	fl.err = err
	close(fl.done)
}

// leaveCall leaves a search, which ends with its last client. It returns why there
// is no answer.
func (f *Fleet) leaveCall(ctx context.Context, fl *call) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl.waiting--; fl.waiting == 0 {
		fl.cancel()
		if f.calls[fl.keyLookup] == fl {
			delete(f.calls, fl.keyLookup) // who comes now begins anew
		}
	}
	switch {
	case fl.reason == nil:
		return fmt.Errorf("waiting for session %s: %w", fl.key, ctx.Err())
	case plainKind(fl.reason) == kindInternal || errors.Is(fl.reason, holdfast.ErrNotFound):
		return fmt.Errorf("waiting for session %s: %w; last: %v", fl.key, ctx.Err(), fl.reason)
	}
	return fmt.Errorf("waiting for session %s: %w", fl.key, fl.reason)
}

// withCause notes why the search waits.
func (f *Fleet) setReason(fl *call, reason error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fl.reason = reason
}

// finalError is one that waiting does not mend.
type finalError struct{ error }

func (e finalError) Unwrap() error { return e.error }

// final reports whether an error is the client's: nobody else could do better.
func final(err error) bool {
	k := kindOf(err)
	return k == kindBoot || k == kindStopped || errors.As(err, new(finalError))
}
