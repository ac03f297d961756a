package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
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

	// glance is how long a session that left as planned is left alone before it is
	// looked whether it sleeps, and so has no successor: most of those that are
	// drained have one by then, and the store is not asked about them.
	glance = 20 * time.Millisecond

	// How long a search waits before it looks past the cache: from the first,
	// doubled up to the last, each spread over half to half as much again. A
	// change that the watch tells of ends the wait at once.
	firstPause = 100 * time.Millisecond
	lastPause  = 2 * time.Second

	// triesPerRound is how many nodes are asked to take a session before the
	// search pauses: their records said that they would, a moment ago.
	triesPerRound = 8

	// linger is how long the answer to a question may still come when the
	// watch told first that the session is ready, so that the connection can
	// be used again.
	linger = 250 * time.Millisecond

	// maxLacking is how many nodes may say that they do not have a template
	// before nobody has it. Up to then a node may have it that has been
	// configured anew before the others.
	maxLacking = 64
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
	looks  sync.Map      // what is looked at beside, by name

	asked  bool            // prefer is known
	prefer holdfast.NodeID // has something of the session; "" is none

	lacking  map[holdfast.NodeID]bool // have not the template
	lack     error                    // as the last of them said it
	willing  bool                     // a node that may have it has refused for now
	anything bool                     // nobody has the template that it had: the default one will do
}

func newQuest(f *Fleet, fl *flight) *quest {
	return &quest{
		f: f, key: fl.key, flight: fl, tried: map[holdfast.NodeID]bool{}, lacking: map[holdfast.NodeID]bool{},
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
func (q *quest) step(ctx context.Context, s Snapshot, changed <-chan struct{}) error {
	if !s.Known {
		return q.nobody(ctx, s, changed)
	}
	q.f.because(q.flight, nil)
	q.forget()
	if s.Owner.Node == q.f.cfg.Node {
		return q.try(ctx, s.Owner.Node, false, "")
	}
	return q.there(ctx, s)
}

// there is for a session that another node owns. A doubt is not looked into
// before the owner is asked but beside: the store may be slow, and the answer of
// either will do.
func (q *quest) there(ctx context.Context, s Snapshot) error {
	owner := s.Owner.Node
	if s.Owner.State == holdfast.Leaving {
		return fmt.Errorf("session %s leaves node %s", q.key, owner)
	}
	if _, ok := q.f.nodes.get(owner); !ok {
		if err := q.f.nodes.know(ctx, owner); err != nil {
			return err
		}
	} else if s.Suspect {
		q.beside("node", func() { _ = q.f.nodes.know(ctx, owner) })
	}
	if s.Suspect {
		q.beside("record", func() { _, _ = q.f.dir.Refresh(ctx, q.key) })
	}
	n, ok := q.f.nodes.get(owner)
	if !ok || n.PeerAddress == "" {
		return fmt.Errorf("session %s is node %s's: %w", q.key, owner, errUnreachable)
	}
	if s.Owner.State == holdfast.Ready && !s.Suspect {
		return nil
	}
	err := q.try(ctx, owner, false, "")
	if errors.Is(err, holdfast.ErrNotFound) {
		_, _ = q.f.dir.Refresh(ctx, q.key)
	}
	return err
}

// beside looks at something, unless it is being looked at already. An error is
// as good as no news.
func (q *quest) beside(what string, look func()) {
	if _, busy := q.looks.LoadOrStore(what, true); busy {
		return
	}
	q.f.tasks.Go(func(context.Context) {
		defer q.looks.Delete(what)
		look()
	})
}

// nobody is for a session that nobody owns.
func (q *quest) nobody(ctx context.Context, s Snapshot, changed <-chan struct{}) error {
	if d := q.forSuccessor(ctx, s); d > 0 {
		return q.leaveToSuccessor(ctx, changed, d)
	}
	if len(q.tried) == triesPerRound {
		return q.nowhere(nil)
	}
	n, err := q.f.nodes.place(ctx, q.avoid(), q.preferred(ctx))
	switch {
	case len(q.lacking) > 0 && !q.willing && (err != nil || len(q.lacking) >= maxLacking):
		return q.unknown()
	case err != nil:
		return q.nowhere(err)
	}
	where := "there"
	if n.ID == q.f.cfg.Node {
		where = "here"
	}
	q.f.deps.Metrics.placements.WithLabelValues(where).Inc()
	return q.refusal(n.ID, q.try(ctx, n.ID, true, q.template(s)), q.template(s))
}

// preferTime bounds the look for a node that has something of the session.
const preferTime = time.Second

// preferred is the node that has something of the session, "" for none. It is asked
// for once in a search.
func (q *quest) preferred(ctx context.Context) holdfast.NodeID {
	if !q.asked && q.f.deps.PreferredNode != nil {
		ctx, cancel := context.WithTimeout(ctx, preferTime)
		defer cancel()
		q.prefer = q.f.deps.PreferredNode(ctx, q.key)
	}
	q.asked = true
	return q.prefer
}

// template is what the session is to be booted from, "" for the default one.
func (q *quest) template(s Snapshot) string {
	if q.anything {
		return ""
	}
	return cmp.Or(q.flight.template, s.Last.Template)
}

// avoid is which nodes need not be asked.
func (q *quest) avoid() map[holdfast.NodeID]bool {
	if len(q.lacking) == 0 {
		return q.tried
	}
	all := maps.Clone(q.tried)
	maps.Copy(all, q.lacking)
	return all
}

// forget begins a search anew.
func (q *quest) forget() {
	clear(q.tried)
	clear(q.lacking)
	q.willing = false
}

// unknown is for a template that no node has which could take the session. Who
// asked for it is told so; one that the session had is let go.
func (q *quest) unknown() error {
	if q.flight.template != "" {
		return finalError{q.lack}
	}
	q.f.log.Warn("no node has the template that a session had; it gets the default one", "session", q.key)
	q.anything = true
	q.forget()
	return errMoved
}

// nowhere ends a round of looking for a node. What the nodes themselves said
// counts more than what their records say, and what they say of the store lasts
// until their records are read again. Where there is no other node, nobody else
// will take what this one does not for draining.
func (q *quest) nowhere(err error) error {
	q.f.deps.Metrics.placements.WithLabelValues("none").Inc()
	reason := q.reason()
	if reason != nil && (len(q.tried) > 0 || errors.Is(reason, holdfast.ErrStore) && errors.Is(err, holdfast.ErrBusy)) {
		err = reason
	}
	clear(q.tried)
	alone, stale := q.f.nodes.alone()
	switch {
	case errors.Is(err, holdfast.ErrDraining) && alone && !stale:
		return finalError{err}
	case errors.Is(err, holdfast.ErrBusy) && reason == nil && stale:
		return fmt.Errorf("%w: the list of nodes is an old one; by it: %w", holdfast.ErrStore, err)
	}
	return err
}

// refusal takes note of what a node answered that was to boot the session. What
// another node may do better is tried there at once.
func (q *quest) refusal(node holdfast.NodeID, err error, template string) error {
	var elsewhere *holdfast.ElsewhereError
	switch {
	case err == nil, final(err), errors.Is(err, errMoved), errors.Is(err, errAnswered),
		errors.As(err, &elsewhere):
		return err
	case template != "" && errors.Is(err, holdfast.ErrNotFound):
		q.lacking[node], q.lack = true, err
		q.f.because(q.flight, err)
		return errMoved
	case errors.Is(err, errCrowded): // that is about us
	case errors.Is(err, holdfast.ErrDraining):
		q.f.nodes.mark(node, func(n *holdfast.Node) { n.Draining = true })
	case errors.Is(err, holdfast.ErrStore), errors.Is(err, holdfast.ErrBusy), errors.Is(err, holdfast.ErrEngine), errors.Is(err, errUnreachable):
		q.f.nodes.mark(node, func(n *holdfast.Node) { n.Trouble = "it would not have a session" })
	}
	q.f.log.Debug("a node would not have a session", "session", q.key, "node", node, "err", err)
	q.tried[node] = true
	q.willing = q.willing || !errors.Is(err, holdfast.ErrDraining)
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
func (q *quest) forSuccessor(ctx context.Context, s Snapshot) time.Duration {
	left := time.Until(s.LastAt.Add(q.moment))
	if s.LastAt.IsZero() || left <= 0 {
		return 0
	}
	if s.Last.State != holdfast.Leaving {
		// Nobody may have read lately that the node drains.
		reading, cancel := context.WithTimeout(ctx, left)
		_ = q.f.nodes.know(reading, s.Last.Node) // else by what is known
		cancel()
		if n, ok := q.f.nodes.get(s.Last.Node); !ok || !n.Draining {
			return 0
		}
	}
	return time.Until(s.LastAt.Add(q.moment))
}

// leaveToSuccessor waits for a successor, for the time d, but for none of a session
// that sleeps: nobody was told to take it.
func (q *quest) leaveToSuccessor(ctx context.Context, changed <-chan struct{}, d time.Duration) error {
	look := !q.asked
	if look {
		d = min(d, glance)
	}
	if !wait(ctx, changed, d) {
		return ctx.Err()
	}
	select {
	case <-changed:
		return errMoved
	default:
	}
	if look && q.preferred(ctx) != "" {
		q.moment = 0
	}
	return errMoved
}

// try asks a node, this one or another, and watches the record meanwhile. It
// returns nil for a session that is ready on this node, errAnswered where the
// directory was told of one that is ready elsewhere, errMoved when the record
// says more than the answer could, and else what the node answered.
func (q *quest) try(ctx context.Context, node holdfast.NodeID, place bool, template string) error {
	asked, _ := q.follow.Look()
	answer, cancel, err := q.ask(node, acquireRequest{Key: q.key, Template: template, Place: place}, asked.Suspect)
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
// that comes too late to be waited for. It ends a doubt that there was when the
// question was sent.
func (q *quest) ask(node holdfast.NodeID, r acquireRequest, doubted bool) (<-chan error, context.CancelFunc, error) {
	f, answer := q.f, make(chan error, 1)
	asking, cancel := context.WithCancel(context.Background())
	started := f.tasks.Go(func(life context.Context) {
		defer cancel()
		defer context.AfterFunc(life, cancel)()
		o, err := f.ask(asking, node, r)
		switch {
		case err != nil:
			f.learn(err)
		case doubted:
			f.dir.Confirm(o)
		default: // it was asked before a doubt that there may be now
			f.dir.Learn(o)
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
func (s Snapshot) overtakes(node holdfast.NodeID, here, place bool) bool {
	switch {
	case !s.Known:
		return !place && !here // it had the session, and has it no longer
	case s.Owner.Node != node:
		return true
	case here:
		return false
	}
	return s.Owner.State == holdfast.Leaving || s.Owner.State == holdfast.Ready && !s.Suspect
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
