package fleet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
)

// host implements Local: its claims are real claims in the store, and a container is a
// timer.
type host struct {
	id    holdfast.NodeID
	store store.Store
	lease store.LeaseID

	mu       sync.Mutex
	sessions map[holdfast.SessionKey]*served
	boot     time.Duration
	max      int
	draining bool
	dead     bool
	bootErr  error
	refuse   error           // of every claim
	has      map[string]bool // the templates, beside the default one; nil: any
	boots    int             // with a successful claim
	held     int             // connections
	refused  int
	template string // of the last boot
}

type served struct {
	owner   holdfast.Owner
	err     error
	settled chan struct{} // ready, or failed
	left    chan struct{}
	gone    chan struct{}
}

func newHost(id holdfast.NodeID, s store.Store, lease store.LeaseID) *host {
	return &host{id: id, store: s, lease: lease, sessions: map[holdfast.SessionKey]*served{}}
}

// with calls f with the lock held.
func (h *host) with(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
}

func (h *host) Ready(key holdfast.SessionKey) (holdfast.Route, func(), bool) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	h.mu.Lock()
	e := h.sessions[key]
	h.mu.Unlock()
	if e == nil {
		return holdfast.Route{}, nil, false
	}
	select {
	case <-e.settled:
		r, release, err := h.await(ctx, e)
		return r, release, err == nil
	default:
		return holdfast.Route{}, nil, false
	}
}

func (h *host) Join(ctx context.Context, key holdfast.SessionKey) (holdfast.Route, func(), error) {
	h.mu.Lock()
	e := h.sessions[key]
	h.mu.Unlock()
	if e == nil {
		return holdfast.Route{}, nil, fmt.Errorf("session %s: %w", key, holdfast.ErrNotFound)
	}
	return h.await(ctx, e)
}

func (h *host) Acquire(ctx context.Context, key holdfast.SessionKey, template string) (holdfast.Route, func(), error) {
	e, err := h.begin(key, template)
	if err != nil {
		return holdfast.Route{}, nil, err
	}
	return h.await(ctx, e)
}

func (h *host) begin(key holdfast.SessionKey, template string) (*served, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch e := h.sessions[key]; {
	case e != nil:
		return e, nil
	case template != "" && h.has != nil && !h.has[template]:
		return nil, fmt.Errorf("template %q: %w", template, holdfast.ErrNotFound)
	case h.refuse != nil:
		return nil, fmt.Errorf("session %s on %s: %w", key, h.id, h.refuse)
	case h.draining:
		return nil, fmt.Errorf("session %s on %s: %w", key, h.id, holdfast.ErrDraining)
	case h.max > 0 && len(h.sessions) >= h.max:
		return nil, fmt.Errorf("session %s on %s: %w", key, h.id, holdfast.ErrBusy)
	}
	e := &served{settled: make(chan struct{}), left: make(chan struct{}), gone: make(chan struct{})}
	h.sessions[key] = e
	go h.run(e, key, template, h.boot, h.bootErr)
	return e, nil
}

func (h *host) run(e *served, key holdfast.SessionKey, template string, boot time.Duration, fail error) {
	o, err := h.store.Claim(context.Background(), holdfast.Owner{
		Key: key, Node: h.id, State: holdfast.Claimed, Template: template, ClaimedAt: time.Now(),
	}, h.lease)
	if errors.Is(err, store.ErrTaken) {
		err = &holdfast.ElsewhereError{Owner: o}
	}
	if err == nil {
		h.with(func() { h.boots++; h.template = template })
		time.Sleep(boot)
		if fail != nil {
			err = &holdfast.BootError{Key: key, Phase: "start", Err: fail, Log: "last words"}
		} else {
			o.State = holdfast.Ready
			o.Address = "10.0.0.1:80"
			o, err = h.advance(o)
		}
	}
	h.with(func() {
		e.owner, e.err = o, err
		if err != nil {
			delete(h.sessions, key)
			close(e.gone)
		}
		close(e.settled)
	})
	if fail != nil && errors.Is(err, fail) {
		_, _ = h.store.Release(context.Background(), o)
	}
}

// advance writes the record, even if the store is unavailable for long, as an owner
// must. An abandoned record would block its key.
func (h *host) advance(o holdfast.Owner) (holdfast.Owner, error) {
	for {
		next, err := h.store.Advance(context.Background(), o)
		if !errors.Is(err, holdfast.ErrStore) {
			return next, err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (h *host) await(ctx context.Context, e *served) (holdfast.Route, func(), error) {
	select {
	case <-e.settled:
	case <-ctx.Done():
		return holdfast.Route{}, nil, ctx.Err()
	}
	h.mu.Lock()
	if e.err != nil {
		h.mu.Unlock()
		return holdfast.Route{}, nil, e.err
	}
	select {
	case <-e.left:
		h.mu.Unlock()
		select {
		case <-e.gone:
			return holdfast.Route{}, nil, holdfast.ErrNotFound
		case <-ctx.Done():
			return holdfast.Route{}, nil, ctx.Err()
		}
	default:
	}
	defer h.mu.Unlock()
	h.held++
	r := holdfast.Route{Key: e.owner.Key, Address: e.owner.Address, Epoch: e.owner.Epoch, ContainerID: "c", Left: e.left}
	return r, func() { h.with(func() { h.held-- }) }, nil
}

func (h *host) Refused(holdfast.SessionKey, holdfast.Route) { h.with(func() { h.refused++ }) }

// AwaitGone implements Local. What this host stops is gone at once.
func (h *host) AwaitGone(ctx context.Context, _ holdfast.SessionKey) error { return ctx.Err() }

// serves reports whether the session is served here in that epoch.
func (h *host) serves(key holdfast.SessionKey, epoch holdfast.Epoch) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.sessions[key]
	if e == nil || h.dead || e.owner.Epoch != epoch {
		return false
	}
	select {
	case <-e.left:
		return false
	default:
		return true
	}
}

// removeRequest begins to end a session, and finish releases it.
func (h *host) leave(ctx context.Context, key holdfast.SessionKey) error {
	h.mu.Lock()
	e := h.sessions[key]
	close(e.left)
	o := e.owner
	h.mu.Unlock()
	o.State = holdfast.Leaving
	o, err := h.store.Advance(ctx, o)
	h.with(func() { e.owner = o })
	return err
}

func (h *host) finish(ctx context.Context, key holdfast.SessionKey) error {
	h.mu.Lock()
	e := h.sessions[key]
	o := e.owner
	h.mu.Unlock()
	_, err := h.store.Release(ctx, o)
	h.with(func() { delete(h.sessions, key); close(e.gone) })
	return err
}

func (h *host) lastTemplate() (name string) {
	h.with(func() { name = h.template })
	return name
}

// bootsOf returns the number of successful claims of all hosts.
func bootsOf(nodes []*node) (n int) {
	for _, x := range nodes {
		x.host.with(func() { n += x.host.boots })
	}
	return n
}

// suspend releases a session that has left, with the note for its next claim.
func (h *host) suspend(ctx context.Context, key holdfast.SessionKey) error {
	h.mu.Lock()
	e := h.sessions[key]
	o := e.owner
	h.mu.Unlock()
	err := h.store.Suspend(ctx, o, "its memory")
	h.with(func() { delete(h.sessions, key); close(e.gone) })
	return err
}

// isSuspended implements Deps.IsSuspended.
func (x *node) isSuspended(ctx context.Context, key holdfast.SessionKey) (bool, error) {
	_, err := store.FindNote(ctx, x.w.store, store.SuspendedNotes+string(key))
	if errors.Is(err, holdfast.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}
