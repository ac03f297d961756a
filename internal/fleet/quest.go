package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"holdfast"
)

const (
	// succession is how long a session that left as planned is left to the
	// successor that its node has told (Prepare): about what the release
	// takes to reach the successor, and its claim to come back. Half as much
	// again is spread over those who wait, so that not all of them place the
	// session at once if nobody claims it.
	succession = 100 * time.Millisecond

	// How long a search waits before it looks past the cache: from the first,
	// doubled up to the last, each spread over half to half as much again. A
	// change that the watch tells of ends the wait at once.
	firstPause = 100 * time.Millisecond
	lastPause  = 2 * time.Second

	// linger is how long the answer to a question may still come when the
	// watch told first that the session is ready, so that the connection can
	// be used again.
	linger = 250 * time.Millisecond
)

var (
	// errMoved ends a step after which there is something else to do.
	errMoved = errors.New("the record has changed")
	// errAnswered ends a step that has told the directory all there is.
	errAnswered = errors.New("the owner says that it is ready")
)

// quest is one search. It is used by its own goroutine only.
type quest struct {
	f      *Fleet
	key    holdfast.SessionKey
	flight *flight
	follow *Follower
	tried  map[holdfast.NodeID]bool // would not have it, this round
	pause  time.Duration
	moment time.Duration // for a successor
}

func newQuest(f *Fleet, key holdfast.SessionKey, fl *flight) *quest {
	return &quest{
		f: f, key: key, flight: fl, tried: map[holdfast.NodeID]bool{},
		pause: firstPause, moment: succession + rand.N(succession/2),
	}
}

// run returns nil when the session is ready somewhere, or an error that is the
// client's.
func (q *quest) run(ctx context.Context) error {
	select {
	case <-q.f.dir.Ready():
	case <-ctx.Done():
		return ctx.Err()
	}
	q.follow = q.f.dir.Follow(q.key)
	defer q.follow.Close()
	for {
		s, changed := q.follow.Look()
		err := q.step(ctx, s, changed)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case final(err):
			return err
		case errors.Is(err, errMoved):
			continue
		}
		if !errors.Is(err, errAnswered) {
			q.f.because(q.flight, err)
		}
		if err := q.later(ctx, changed); err != nil {
			return err
		}
	}
}

// step does what there is to do as things are. nil is the end of the search,
// errMoved means that there is something else to do, any other error that there
// is nothing to do but wait.
func (q *quest) step(ctx context.Context, s Sight, changed <-chan struct{}) error {
	if !s.Known {
		return q.nobody(ctx, s, changed)
	}
	q.f.because(q.flight, nil)
	clear(q.tried)
	if s.Owner.Node == q.f.cfg.Node {
		return q.try(ctx, s.Owner.Node, false, "")
	}
	return q.there(ctx, s)
}

// there is for a session that another node owns.
func (q *quest) there(ctx context.Context, s Sight) error {
	owner := s.Owner.Node
	if s.Owner.State == holdfast.Leaving {
		return fmt.Errorf("session %s leaves node %s", q.key, owner)
	}
	if _, ok := q.f.nodes.get(owner); !ok || s.Doubted {
		if err := q.f.nodes.know(ctx, owner); err != nil {
			return err
		}
	}
	n, ok := q.f.nodes.get(owner)
	if !ok || n.Hop == "" {
		return fmt.Errorf("session %s is node %s's: %w", q.key, owner, errUnreachable)
	}
	if s.Owner.State == holdfast.Ready && !s.Doubted {
		return nil
	}
	if s.Doubted {
		// An error is as good as no answer: the owner is asked next.
		_, _ = q.f.dir.Refresh(ctx, q.key)
		if now, _ := q.follow.Look(); now.Owner.Epoch != s.Owner.Epoch || now.Owner.State != s.Owner.State {
			return errMoved
		}
	}
	err := q.try(ctx, owner, false, "")
	if errors.Is(err, holdfast.ErrNotFound) {
		_, _ = q.f.dir.Refresh(ctx, q.key)
	}
	return err
}

// nobody is for a session that nobody owns.
func (q *quest) nobody(ctx context.Context, s Sight, changed <-chan struct{}) error {
	if d := q.forSuccessor(s); d > 0 {
		if !wait(ctx, changed, d) {
			return ctx.Err()
		}
		return errMoved
	}
	n, err := q.f.nodes.place(ctx, q.tried)
	if err != nil {
		q.f.deps.Metrics.placements.WithLabelValues("none").Inc()
		if reason := q.reason(); len(q.tried) > 0 && reason != nil {
			err = reason // what the nodes themselves said
		}
		clear(q.tried)
		return err
	}
	where := "there"
	if n.ID == q.f.cfg.Node {
		where = "here"
	}
	q.f.deps.Metrics.placements.WithLabelValues(where).Inc()
	return q.refusal(n.ID, q.try(ctx, n.ID, true, cmp.Or(q.flight.template, s.Last.Template)))
}

// refusal takes note of what a node answered that was to boot the session. What
// another node may do better is tried there at once.
func (q *quest) refusal(node holdfast.NodeID, err error) error {
	var elsewhere *holdfast.ElsewhereError
	switch {
	case err == nil, final(err), errors.Is(err, errMoved), errors.Is(err, errAnswered),
		errors.As(err, &elsewhere), errors.Is(err, holdfast.ErrStore):
		return err
	case errors.Is(err, holdfast.ErrDraining):
		q.f.nodes.mark(node, func(n *holdfast.Node) { n.Draining = true })
	case errors.Is(err, holdfast.ErrBusy), errors.Is(err, holdfast.ErrEngine), errors.Is(err, errUnreachable):
		q.f.nodes.mark(node, func(n *holdfast.Node) { n.Trouble = "it would not have a session" })
	}
	q.f.log.Debug("a node would not have a session", "session", q.key, "node", node, "err", err)
	q.tried[node] = true
	q.f.because(q.flight, err)
	return errMoved
}

func (q *quest) reason() error {
	q.f.mu.Lock()
	defer q.f.mu.Unlock()
	return q.flight.reason
}

// forSuccessor is how long to leave the session to one that was told to take it:
// only after an end that was planned.
func (q *quest) forSuccessor(s Sight) time.Duration {
	if s.LastAt.IsZero() {
		return 0
	}
	if s.Last.State != holdfast.Leaving {
		if n, ok := q.f.nodes.get(s.Last.Node); !ok || !n.Draining {
			return 0
		}
	}
	return time.Until(s.LastAt.Add(q.moment))
}

// try asks a node, this one or another, and watches the record meanwhile. It
// returns nil for a session that is ready on this node, errAnswered where the
// directory was told of one that is ready elsewhere, errMoved when the record
// says more than the answer could, and else what the node answered.
func (q *quest) try(ctx context.Context, node holdfast.NodeID, place bool, template string) error {
	answer, cancel, err := q.ask(node, acquireRequest{Key: q.key, Template: template, Place: place})
	if err != nil {
		return err
	}
	here := node == q.f.cfg.Node
	for {
		s, changed := q.follow.Look()
		if s.overtakes(node, here, place) {
			time.AfterFunc(linger, cancel)
			return errMoved
		}
		select {
		case err := <-answer:
			cancel()
			if err == nil && !here {
				return errAnswered
			}
			return err
		case <-changed:
		case <-ctx.Done():
			cancel()
			return ctx.Err()
		}
	}
}

// ask begins to ask a node. The directory learns from the answer, also from one
// that comes too late to be waited for.
func (q *quest) ask(node holdfast.NodeID, r acquireRequest) (<-chan error, context.CancelFunc, error) {
	f, answer := q.f, make(chan error, 1)
	asking, cancel := context.WithCancel(context.Background())
	started := f.spawn(func(life context.Context) {
		defer cancel()
		defer context.AfterFunc(life, cancel)()
		o, err := f.ask(asking, node, r)
		if err == nil {
			f.dir.Confirm(o)
		} else {
			f.learn(err)
		}
		answer <- err
	})
	if !started {
		cancel()
		return nil, nil, f.errNotRunning()
	}
	return answer, cancel, nil
}

func (f *Fleet) ask(ctx context.Context, node holdfast.NodeID, r acquireRequest) (holdfast.Owner, error) {
	if node == f.cfg.Node {
		return f.local(ctx, r)
	}
	n, ok := f.nodes.get(node)
	if !ok {
		return holdfast.Owner{}, fmt.Errorf("node %s has left: %w", node, errUnreachable)
	}
	return f.peers.acquire(ctx, n, r)
}

// learn takes over what an error says of where the session is.
func (f *Fleet) learn(err error) {
	var elsewhere *holdfast.ElsewhereError
	if errors.As(err, &elsewhere) && elsewhere.Owner.Epoch > 0 {
		f.dir.Learn(elsewhere.Owner)
	}
}

// overtakes reports whether the record says more than the node's answer could.
func (s Sight) overtakes(node holdfast.NodeID, here, place bool) bool {
	switch {
	case !s.Known:
		return !place && !here // it had the session, and has it no longer
	case s.Owner.Node != node:
		return true
	case here:
		return false
	}
	return s.Owner.State == holdfast.Leaving || s.Owner.State == holdfast.Ready && !s.Doubted
}

// later waits for a change, or for the time to look past the cache.
func (q *quest) later(ctx context.Context, changed <-chan struct{}) error {
	select {
	case <-changed:
		q.pause = firstPause
		return nil
	default:
	}
	if !wait(ctx, changed, jitter(q.pause)) {
		return ctx.Err()
	}
	q.pause = min(2*q.pause, lastPause)
	select {
	case <-changed:
		q.pause = firstPause
	default:
		_, _ = q.f.dir.Refresh(ctx, q.key) // an error changes nothing: it is looked at again
	}
	return nil
}
