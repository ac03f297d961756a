package fleet

import (
	"context"
	"errors"
	"fmt"

	"holdfast"
)

// keyLookup identifies a search. Requests for different templates search separately,
// because no node may have one of the templates.
type keyLookup struct {
	key      holdfast.SessionKey
	template string // "" for any template
	boot     bool   // have the session booted if no node has it; else the search fails with errUnowned
}

// errUnowned ends a search that may not boot the session.
var errUnowned = errors.New("no node has the session")

// call is the one search that all requests for the same keyLookup on this node share
// (singleflight).
type call struct {
	keyLookup
	by     holdfast.WakeReason // of the first request
	done   chan struct{}
	cancel context.CancelFunc

	// Guarded by Fleet.mu:

	waiting int
	reason  error // why the search waits; nil if it is making progress
	err     error // the result, valid once done is closed
}

// Acquire returns where the session is served. If no node serves it, Acquire has it
// booted on a node of the fleet, if boot allows it: boot is called before a boot
// begins, with locks held, and its error is returned. It is not called for a request
// that joins the boot of another one. With nil every boot is allowed. If the session
// sleeps, it continues for the reason of ctx (holdfast.WithWakeReason). Acquire waits until
// the session is ready or ctx is done. A connection to a session on this node is counted until release is called. A
// connection to another node is counted there. Errors: a *holdfast.BootError,
// holdfast.ErrStopped, or holdfast.ErrDraining if there is no other node. If ctx is
// done first, the error is holdfast.ErrBusy, ErrDraining, ErrStore or ErrEngine if
// that was the reason to wait, else ctx's error.
func (f *Fleet) Acquire(ctx context.Context, key holdfast.SessionKey, boot func() error) (holdfast.Route, func(), error) {
	return f.acquire(ctx, key, "", boot)
}

// Ready is Acquire for a session that is ready and never sleeps. It does not wait.
func (f *Fleet) Ready(key holdfast.SessionKey) (r holdfast.Route, release func(), ok bool) {
	// A wait or a failure on this node must not hide a route: another node may have won the
	// claim meanwhile.
	if r, ok := f.remote(key); ok {
		return r, func() {}, true
	}
	return f.deps.Local.Ready(key)
}

// Start is Acquire without a connection. If the session is not running, it boots from
// the template; "" is the template that it had last, or the default one. Start returns
// the session's record, read from the store. Errors: those of Acquire and of the store,
// and holdfast.ErrNotFound if no node has the template.
func (f *Fleet) Start(ctx context.Context, key holdfast.SessionKey, template string) (holdfast.Owner, error) {
	for {
		r, release, err := f.acquire(ctx, key, template, nil)
		if err != nil {
			return holdfast.Owner{}, err
		}
		release()
		o, err := f.deps.Store.Get(ctx, key)
		if !errors.Is(err, holdfast.ErrNotFound) {
			return o, err
		}
		// The session has ended, and the directory does not know it yet.
		f.Refused(key, r)
	}
}

func (f *Fleet) acquire(ctx context.Context, key holdfast.SessionKey, template string, boot func() error) (holdfast.Route, func(), error) {
	for {
		if r, release, ok := f.Ready(key); ok {
			return r, release, nil
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
		err = f.find(ctx, keyLookup{key, template, boot == nil}, boot)
		if errors.Is(err, errUnowned) {
			if _, known := f.dir.Owner(key); known { // meanwhile
				continue
			}
			err = f.find(ctx, keyLookup{key, template, true}, boot)
		}
		if err != nil {
			return holdfast.Route{}, nil, err
		}
	}
}

// join calls Local.Join, but stops waiting for this node once the directory knows that
// another node owns the session. It always returns a session that is ready here,
// because the directory may lag.
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

// Refused reports that the route could not be reached, or that its node refused the
// request. The next Acquire reads the store.
func (f *Fleet) Refused(key holdfast.SessionKey, r holdfast.Route) {
	if r.Node == "" || r.Node == f.cfg.Node {
		f.deps.Local.Refused(key, r)
		return
	}
	f.dir.MarkSuspect(key, r.Epoch)
}

// remote returns the route to a session that is ready on another node, according to
// the directory.
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

// find waits for the search for a session and starts it if necessary. nil means that
// the caller looks again. boot is asked before a search starts that may boot the
// session.
func (f *Fleet) find(ctx context.Context, what keyLookup, boot func() error) error {
	c, err := f.joinCall(what, holdfast.WakeReasonOf(ctx), boot)
	if err != nil {
		return err
	}
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return f.leaveCall(ctx, c)
	}
}

// joinCall joins the search for a session, or starts it.
func (f *Fleet) joinCall(what keyLookup, by holdfast.WakeReason, boot func() error) (*call, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.calls[what]
	if c == nil {
		life := f.tasks.Context()
		if life == nil {
			return nil, f.errNotRunning()
		}
		if what.boot && boot != nil {
			if err := boot(); err != nil {
				return nil, err
			}
		}
		ctx, cancel := context.WithCancel(life)
		c = &call{keyLookup: what, by: by, done: make(chan struct{}), cancel: cancel}
		f.calls[what] = c
		f.tasks.Go(func(context.Context) {
			err := newResolver(f, c).run(ctx)
			cancel()
			f.finishCall(c, err)
		})
	}
	c.waiting++
	return c, nil
}

// finishCall ends a search.
func (f *Fleet) finishCall(c *call, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.calls[c.keyLookup] == c {
		delete(f.calls, c.keyLookup)
	}
	if errors.Is(err, context.Canceled) && f.ended() {
		err = f.errNotRunning()
	}
	c.err = err
	close(c.done)
}

// leaveCall leaves a search. The search ends with its last client. leaveCall returns
// why there is no result.
func (f *Fleet) leaveCall(ctx context.Context, c *call) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.waiting--; c.waiting == 0 {
		c.cancel()
		if f.calls[c.keyLookup] == c {
			delete(f.calls, c.keyLookup) // the next request starts a new search
		}
	}
	switch {
	case c.reason == nil:
		return fmt.Errorf("waiting for session %s: %w", c.key, ctx.Err())
	case plainKind(c.reason) == kindInternal || errors.Is(c.reason, holdfast.ErrNotFound):
		return fmt.Errorf("waiting for session %s: %w; last: %v", c.key, ctx.Err(), c.reason)
	}
	return fmt.Errorf("waiting for session %s: %w", c.key, c.reason)
}

// setReason records why the search waits.
func (f *Fleet) setReason(c *call, reason error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c.reason = reason
}

// finalError is an error that waiting cannot resolve.
type finalError struct{ error }

func (e finalError) Unwrap() error { return e.error }

// final reports whether an error is final for the client: another node could not do
// better.
func final(err error) bool {
	k := kindOf(err)
	return k == kindBoot || k == kindStopped || errors.As(err, new(finalError))
}
