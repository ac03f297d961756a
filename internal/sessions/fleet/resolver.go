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
	// handoffGrace is how long a session that left as planned is left to the
	// successor that its node has told (Prepare): about what the release
	// takes to reach the successor, and its claim to come back. Half as much
	// again is spread over those who wait, so that not all of them place the
	// session at once if nobody claims it.
	handoffGrace = 100 * time.Millisecond

	// lookupDelay is how long a session that left as planned is left alone before it is
	// looked whether it sleeps, and so has no successor: most of those that are
	// drained have one by then, and the store is not asked about them.
	lookupDelay = 20 * time.Millisecond

	// How long a search waits before it looks past the cache: from the first,
	// doubled up to the last, each spread over half to half as much again. A
	// change that the watch tells of ends the wait at once.
	minBackoff = 100 * time.Millisecond
	maxBackoff = 2 * time.Second

	// triesPerRound is how many nodes are asked to take a session before the
	// search pauses: their records said that they would, a moment ago.
	triesPerRound = 8

	// answerGrace is how long the answer to a question may still come when the
	// watch told first that the session is ready, so that the connection can
	// be used again.
	answerGrace = 250 * time.Millisecond

	// maxLacking is how many nodes may say that they do not have a template
	// before nobody has it. Up to then a node may have it that has been
	// configured anew before the others.
	maxLacking = 64
)

var (
	// errRecordChanged ends a step after which there is something else to do.
	errRecordChanged = errors.New("the record has changed")
	// errAnswered ends a step that has told the directory all there is.
	errAnswered = errors.New("the owner says that it is ready")
)

// resolver is one search. It is used by its own goroutine only.
type resolver struct {
	f              *Fleet
	key            holdfast.SessionKey
	call           *call
	follow         *Follower
	tried          map[holdfast.NodeID]bool // would not have it, this round
	backoff        time.Duration
	successorGrace time.Duration // for a successor
	background     sync.Map      // what is looked at beside, by name

	preferKnown bool            // prefer is known
	prefer      holdfast.NodeID // has something of the session; "" is none

	lacking     map[holdfast.NodeID]bool // have not the template
	lackErr     error                    // as the last of them said it
	mayAccept   bool                     // a node that may have it has refused for now
	anyTemplate bool                     // nobody has the template that it had: the default one will do
}

func newResolver(f *Fleet, fl *call) *resolver {
	return &resolver{
		f: f, key: fl.key, call: fl, tried: map[holdfast.NodeID]bool{}, lacking: map[holdfast.NodeID]bool{},
		backoff: minBackoff, successorGrace: handoffGrace + rand.N(handoffGrace/2),
	}
}

// run returns nil when the session is ready somewhere, or an error that is the
// client's.
func (r *resolver) run(ctx context.Context) error {
	select {
	case <-r.f.dir.Ready():
	case <-ctx.Done():
		return ctx.Err()
	}
	r.follow = r.f.dir.Follow(r.key)
	defer r.follow.Close()
	for {
		s, changed := r.follow.Look()
		err := r.step(ctx, s, changed)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case final(err):
			return err
		case errors.Is(err, errRecordChanged):
			continue
		}
		if !errors.Is(err, errAnswered) {
			r.f.setReason(r.call, err)
		}
		if err := r.backOff(ctx, changed); err != nil {
			return err
		}
	}
}

// step does what there is to do as things are. nil is the end of the search,
// errMoved means that there is something else to do, any other error that there
// is nothing to do but wait.
func (r *resolver) step(ctx context.Context, s Snapshot, changed <-chan struct{}) error {
	if !s.Known {
		return r.resolveUnowned(ctx, s, changed)
	}
	r.f.setReason(r.call, nil)
	r.resetRound()
	if s.Owner.Node == r.f.cfg.Node {
		return r.try(ctx, s.Owner.Node, false, "")
	}
	return r.resolveOwned(ctx, s)
}

// resolveOwned is for a session that another node owns. A doubt is not looked into
// before the owner is asked but beside: the store may be slow, and the answer of
// either will do.
func (r *resolver) resolveOwned(ctx context.Context, s Snapshot) error {
	owner := s.Owner.Node
	if s.Owner.State == holdfast.Leaving {
		return fmt.Errorf("session %s leaves node %s", r.key, owner)
	}
	if _, ok := r.f.nodes.get(owner); !ok {
		if err := r.f.nodes.ensure(ctx, owner); err != nil {
			return err
		}
	} else if s.Suspect {
		r.inBackground("node", func() { _ = r.f.nodes.ensure(ctx, owner) })
	}
	if s.Suspect {
		r.inBackground("record", func() { _, _ = r.f.dir.Refresh(ctx, r.key) })
	}
	n, ok := r.f.nodes.get(owner)
	if !ok || n.PeerAddress == "" {
		return fmt.Errorf("session %s is node %s's: %w", r.key, owner, errUnreachable)
	}
	if s.Owner.State == holdfast.Ready && !s.Suspect {
		return nil
	}
	err := r.try(ctx, owner, false, "")
	if errors.Is(err, holdfast.ErrNotFound) {
		_, _ = r.f.dir.Refresh(ctx, r.key)
	}
	return err
}

// inBackground looks at something, unless it is being looked at already. An error is
// as good as no news.
func (r *resolver) inBackground(what string, look func()) {
	if _, busy := r.background.LoadOrStore(what, true); busy {
		return
	}
	r.f.tasks.Go(func(context.Context) {
		defer r.background.Delete(what)
		look()
	})
}

// noCandidate is for a session that nobody owns.
func (r *resolver) resolveUnowned(ctx context.Context, s Snapshot, changed <-chan struct{}) error {
	if d := r.successorWait(ctx, s); d > 0 {
		return r.waitForSuccessor(ctx, changed, d)
	}
	if len(r.tried) == triesPerRound {
		return r.noNode(nil)
	}
	n, err := r.f.nodes.place(ctx, r.avoid(), r.preferred(ctx))
	switch {
	case len(r.lacking) > 0 && !r.mayAccept && (err != nil || len(r.lacking) >= maxLacking):
		return r.noTemplate()
	case err != nil:
		return r.noNode(err)
	}
	where := "there"
	if n.ID == r.f.cfg.Node {
		where = "here"
	}
	r.f.deps.Metrics.placements.WithLabelValues(where).Inc()
	return r.noteRefusal(n.ID, r.try(ctx, n.ID, true, r.template(s)), r.template(s))
}

// preferTime bounds the look for a node that has something of the session.
const preferTime = time.Second

// preferred is the node that has something of the session, "" for none. It is asked
// for once in a search.
func (r *resolver) preferred(ctx context.Context) holdfast.NodeID {
	if !r.preferKnown && r.f.deps.PreferredNode != nil {
		ctx, cancel := context.WithTimeout(ctx, preferTime)
		defer cancel()
		r.prefer = r.f.deps.PreferredNode(ctx, r.key)
	}
	r.preferKnown = true
	return r.prefer
}

// template is what the session is to be booted from, "" for the default one.
func (r *resolver) template(s Snapshot) string {
	if r.anyTemplate {
		return ""
	}
	return cmp.Or(r.call.template, s.Last.Template)
}

// avoid is which nodes need not be asked.
func (r *resolver) avoid() map[holdfast.NodeID]bool {
	if len(r.lacking) == 0 {
		return r.tried
	}
	all := maps.Clone(r.tried)
	maps.Copy(all, r.lacking)
	return all
}

// remove begins a search anew.
func (r *resolver) resetRound() {
	clear(r.tried)
	clear(r.lacking)
	r.mayAccept = false
}

// noTemplate is for a template that no node has which could take the session. Who
// asked for it is told so; one that the session had is let go.
func (r *resolver) noTemplate() error {
	if r.call.template != "" {
		return finalError{r.lackErr}
	}
	r.f.log.Warn("no node has the template that a session had; it gets the default one", "session", r.key)
	r.anyTemplate = true
	r.resetRound()
	return errRecordChanged
}

// noNode ends a round of looking for a node. What the nodes themselves said
// counts more than what their records say, and what they say of the store lasts
// until their records are read again. Where there is no other node, nobody else
// will take what this one does not for draining.
func (r *resolver) noNode(err error) error {
	r.f.deps.Metrics.placements.WithLabelValues("none").Inc()
	reason := r.reason()
	if reason != nil && (len(r.tried) > 0 || errors.Is(reason, holdfast.ErrStore) && errors.Is(err, holdfast.ErrBusy)) {
		err = reason
	}
	clear(r.tried)
	alone, stale := r.f.nodes.alone()
	switch {
	case errors.Is(err, holdfast.ErrDraining) && alone && !stale:
		return finalError{err}
	case errors.Is(err, holdfast.ErrBusy) && reason == nil && stale:
		return fmt.Errorf("%w: the list of nodes is an old one; by it: %w", holdfast.ErrStore, err)
	}
	return err
}

// noteRefusal takes note of what a node answered that was to boot the session. What
// another node may do better is tried there at once.
func (r *resolver) noteRefusal(node holdfast.NodeID, err error, template string) error {
	var elsewhere *holdfast.ElsewhereError
	switch {
	case err == nil, final(err), errors.Is(err, errRecordChanged), errors.Is(err, errAnswered),
		errors.As(err, &elsewhere):
		return err
	case template != "" && errors.Is(err, holdfast.ErrNotFound):
		r.lacking[node], r.lackErr = true, err
		r.f.setReason(r.call, err)
		return errRecordChanged
	case errors.Is(err, errTooManyRequests): // that is about us
	case errors.Is(err, holdfast.ErrDraining):
		r.f.nodes.mark(node, func(n *holdfast.Node) { n.Draining = true })
	case errors.Is(err, holdfast.ErrStore), errors.Is(err, holdfast.ErrBusy), errors.Is(err, holdfast.ErrEngine), errors.Is(err, errUnreachable):
		r.f.nodes.mark(node, func(n *holdfast.Node) { n.Trouble = "it would not have a session" })
	}
	r.f.log.Debug("a node would not have a session", "session", r.key, "node", node, "err", err)
	r.tried[node] = true
	r.mayAccept = r.mayAccept || !errors.Is(err, holdfast.ErrDraining)
	r.f.setReason(r.call, err)
	return errRecordChanged
}

func (r *resolver) reason() error {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	return r.call.reason
}

// successorWait is how long to leave the session to one that was told to take it:
// only after an end that was planned.
func (r *resolver) successorWait(ctx context.Context, s Snapshot) time.Duration {
	left := time.Until(s.LastAt.Add(r.successorGrace))
	if s.LastAt.IsZero() || left <= 0 {
		return 0
	}
	if s.Last.State != holdfast.Leaving {
		// Nobody may have read lately that the node drains.
		reading, cancel := context.WithTimeout(ctx, left)
		_ = r.f.nodes.ensure(reading, s.Last.Node) // else by what is known
		cancel()
		if n, ok := r.f.nodes.get(s.Last.Node); !ok || !n.Draining {
			return 0
		}
	}
	return time.Until(s.LastAt.Add(r.successorGrace))
}

// waitForSuccessor waits for a successor, for the time d, but for none of a session
// that sleeps: nobody was told to take it.
func (r *resolver) waitForSuccessor(ctx context.Context, changed <-chan struct{}, d time.Duration) error {
	look := !r.preferKnown
	if look {
		d = min(d, lookupDelay)
	}
	if !wait(ctx, changed, d) {
		return ctx.Err()
	}
	select {
	case <-changed:
		return errRecordChanged
	default:
	}
	if look && r.preferred(ctx) != "" {
		r.successorGrace = 0
	}
	return errRecordChanged
}

// try asks a node, this one or another, and watches the record meanwhile. It
// returns nil for a session that is ready on this node, errAnswered where the
// directory was told of one that is ready elsewhere, errMoved when the record
// says more than the answer could, and else what the node answered.
func (r *resolver) try(ctx context.Context, node holdfast.NodeID, place bool, template string) error {
	asked, _ := r.follow.Look()
	answer, cancel, err := r.ask(node, acquireRequest{Key: r.key, Template: template, Place: place}, asked.Suspect)
	if err != nil {
		return err
	}
	here := node == r.f.cfg.Node
	for {
		s, changed := r.follow.Look()
		if s.supersedes(node, here, place) {
			time.AfterFunc(answerGrace, cancel)
			return errRecordChanged
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
func (r *resolver) ask(node holdfast.NodeID, req acquireRequest, doubted bool) (<-chan error, context.CancelFunc, error) {
	f, answer := r.f, make(chan error, 1)
	asking, cancel := context.WithCancel(context.Background())
	started := f.tasks.Go(func(life context.Context) {
		defer cancel()
		defer context.AfterFunc(life, cancel)()
		o, err := f.ask(asking, node, req)
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

func (f *Fleet) ask(ctx context.Context, node holdfast.NodeID, req acquireRequest) (holdfast.Owner, error) {
	if node == f.cfg.Node {
		return f.local(ctx, req)
	}
	n, ok := f.nodes.get(node)
	if !ok {
		return holdfast.Owner{}, fmt.Errorf("node %s has left: %w", node, errUnreachable)
	}
	return f.peers.acquire(ctx, n, req)
}

// learn takes over what an error says of where the session is.
func (f *Fleet) learn(err error) {
	var elsewhere *holdfast.ElsewhereError
	if errors.As(err, &elsewhere) && elsewhere.Owner.Epoch > 0 {
		f.dir.Learn(elsewhere.Owner)
	}
}

// supersedes reports whether the record says more than the node's answer could.
func (s Snapshot) supersedes(node holdfast.NodeID, here, place bool) bool {
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

// backOff waits for a change, or for the time to look past the cache.
func (r *resolver) backOff(ctx context.Context, changed <-chan struct{}) error {
	select {
	case <-changed:
		r.backoff = minBackoff
		return nil
	default:
	}
	if !wait(ctx, changed, jitter(r.backoff)) {
		return ctx.Err()
	}
	r.backoff = min(2*r.backoff, maxBackoff)
	select {
	case <-changed:
		r.backoff = minBackoff
	default:
		_, _ = r.f.dir.Refresh(ctx, r.key) // an error changes nothing: it is looked at again
	}
	return nil
}
