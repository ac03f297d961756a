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
	// handoffGrace is how long a session that left as planned is reserved for the
	// successor that its node chose (Prepare). It covers the time until the release
	// reaches the successor and the successor's claim reaches this node. Each waiting
	// resolver adds a random time of up to half of it, so that they do not all place
	// the session at once if the successor does not claim it.
	handoffGrace = 100 * time.Millisecond

	// lookupDelay is how long a resolver waits after a planned end before it asks
	// whether the session is suspended and therefore has no successor. Within that
	// time a successor has claimed most drained sessions, so that the store is not
	// asked about them.
	lookupDelay = 20 * time.Millisecond

	// minBackoff and maxBackoff bound how long a resolver waits before it reads the
	// store instead of the cache. The wait doubles each time and is spread over 0.5 to
	// 1.5 of its length. A change that the watch reports ends the wait at once.
	minBackoff = 100 * time.Millisecond
	maxBackoff = 2 * time.Second

	// triesPerRound is how many nodes are asked to accept a session before the
	// resolver pauses. A moment before, according to their records, those nodes would
	// have accepted it.
	triesPerRound = 8

	// answerGrace is how long a request may continue after the watch has reported that
	// the session is ready. An answer within that time allows the connection to be
	// reused.
	answerGrace = 250 * time.Millisecond

	// maxLacking is how many nodes may answer that they do not have a template before
	// the resolver reports that no node has it. A node with a newer configuration may
	// have the template before the others.
	maxLacking = 64
)

var (
	// errRecordChanged ends a step after which the resolver looks at the record again.
	errRecordChanged = errors.New("the record has changed")
	// errAnswered ends a step whose answer is in the directory.
	errAnswered = errors.New("the owner reports that it is ready")
)

// resolver is one search for the node that serves a session. Only its own goroutine
// uses it.
type resolver struct {
	f              *Fleet
	key            holdfast.SessionKey
	call           *call
	follow         *Follower
	tried          map[holdfast.NodeID]bool // refused the session in this round
	backoff        time.Duration
	successorGrace time.Duration // how long the session is reserved for a successor
	background     sync.Map      // lookups in progress beside the search, by name

	preferKnown bool            // prefer has been looked up
	prefer      holdfast.NodeID // has an image of the session; "" if no node has

	lacking     map[holdfast.NodeID]bool // do not have the template
	lackErr     error                    // the last error of those nodes
	mayAccept   bool                     // a node that may have the template refused for now
	anyTemplate bool                     // no node has the session's template: use the default one
}

func newResolver(f *Fleet, c *call) *resolver {
	return &resolver{
		f: f, key: c.key, call: c, tried: map[holdfast.NodeID]bool{}, lacking: map[holdfast.NodeID]bool{},
		backoff: minBackoff, successorGrace: handoffGrace + rand.N(handoffGrace/2),
	}
}

// run returns nil when the session is ready on some node, or an error for the client.
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

// step does one step of the search. nil ends the search. errRecordChanged means that
// run calls step again at once. After any other error run waits for a change or for
// the backoff.
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

// resolveOwned handles a session that another node owns. If the record is suspect, the
// resolver asks the owner and reads the store at the same time, because the store may
// be slow and either answer suffices.
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

// inBackground runs look in a goroutine, unless one with the same name is still
// running. An error of look has no effect.
func (r *resolver) inBackground(what string, look func()) {
	if _, busy := r.background.LoadOrStore(what, true); busy {
		return
	}
	r.f.tasks.Go(func(context.Context) {
		defer r.background.Delete(what)
		look()
	})
}

// resolveUnowned handles a session without an owner.
func (r *resolver) resolveUnowned(ctx context.Context, s Snapshot, changed <-chan struct{}) error {
	if d := r.successorWait(ctx, s); d > 0 {
		return r.waitForSuccessor(ctx, changed, d)
	}
	if !r.call.boot {
		return finalError{errUnowned}
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

// preferTime bounds the lookup of the preferred node.
const preferTime = time.Second

// preferred returns the node that has an image of the session, or "" if no node has
// one. A search looks it up once.
func (r *resolver) preferred(ctx context.Context) holdfast.NodeID {
	if !r.preferKnown && r.f.deps.PreferredNode != nil {
		ctx, cancel := context.WithTimeout(ctx, preferTime)
		defer cancel()
		r.prefer = r.f.deps.PreferredNode(ctx, r.key)
	}
	r.preferKnown = true
	return r.prefer
}

// template returns the template that the session boots from, or "" for the default
// one.
func (r *resolver) template(s Snapshot) string {
	if r.anyTemplate {
		return ""
	}
	return cmp.Or(r.call.template, s.Last.Template)
}

// avoid returns the nodes that need not be asked.
func (r *resolver) avoid() map[holdfast.NodeID]bool {
	if len(r.lacking) == 0 {
		return r.tried
	}
	all := maps.Clone(r.tried)
	maps.Copy(all, r.lacking)
	return all
}

// resetRound starts a new round of the search.
func (r *resolver) resetRound() {
	clear(r.tried)
	clear(r.lacking)
	r.mayAccept = false
}

// noTemplate handles a template that no available node has. If the client named the
// template, or if no node has a default one, it receives the error. If the template came from the session's last
// record, the session gets the default one.
func (r *resolver) noTemplate() error {
	if r.call.template != "" || r.anyTemplate {
		return finalError{r.lackErr}
	}
	r.f.log.Warn("no node has the template that a session had; it gets the default one", "session", r.key)
	r.anyTemplate = true
	r.resetRound()
	return errRecordChanged
}

// noNode ends a round without a node. The answers of the nodes take precedence over
// their records, and what they say about the store holds until their records are read
// again. If this is the only node and it is draining, no other node can accept the
// session, so the error is final.
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
		return fmt.Errorf("%w: the list of nodes is out of date; according to it: %w", holdfast.ErrStore, err)
	}
	return err
}

// noteRefusal records the answer of a node that did not boot the session. The caller
// then tries another node at once.
func (r *resolver) noteRefusal(node holdfast.NodeID, err error, template string) error {
	switch {
	case err == nil, final(err), errors.Is(err, errRecordChanged), errors.Is(err, errAnswered), kindOf(err) == kindElsewhere:
		return err
	case template != "" && errors.Is(err, holdfast.ErrNotFound):
		r.lacking[node], r.lackErr = true, err
		r.f.setReason(r.call, err)
		return errRecordChanged
	case errors.Is(err, errTooManyRequests): // the limit is of this node, not of the other one
	case errors.Is(err, holdfast.ErrDraining):
		r.f.nodes.mark(node, func(n *holdfast.Node) { n.Draining = true })
	case errors.Is(err, holdfast.ErrStore), errors.Is(err, holdfast.ErrBusy), errors.Is(err, holdfast.ErrEngine), errors.Is(err, errUnreachable):
		r.f.nodes.mark(node, func(n *holdfast.Node) { n.Trouble = "the node refused a session" })
	}
	r.f.log.Debug("a node refused a session", "session", r.key, "node", node, "err", err)
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

// successorWait returns how long the session stays reserved for its successor. It is
// over 0 only after a planned end.
func (r *resolver) successorWait(ctx context.Context, s Snapshot) time.Duration {
	left := time.Until(s.LastAt.Add(r.successorGrace))
	if s.LastAt.IsZero() || left <= 0 {
		return 0
	}
	if s.Last.State != holdfast.Leaving {
		// The list of nodes may be older than the start of the drain.
		reading, cancel := context.WithTimeout(ctx, left)
		_ = r.f.nodes.ensure(reading, s.Last.Node) // on an error, use the list as it is
		cancel()
		if n, ok := r.f.nodes.get(s.Last.Node); !ok || !n.Draining {
			return 0
		}
	}
	return time.Until(s.LastAt.Add(r.successorGrace))
}

// waitForSuccessor waits up to d for the successor's claim. If the session is
// suspended it has no successor, and the wait ends.
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

// try asks a node, this one or another, and watches the record meanwhile. It returns
// nil if the session is ready on this node, errAnswered if the directory has learned
// that it is ready elsewhere, errRecordChanged if the record is newer than the answer
// can be, and else the node's answer.
func (r *resolver) try(ctx context.Context, node holdfast.NodeID, place bool, template string) error {
	asked, _ := r.follow.Look()
	answer, cancel, err := r.ask(node, acquireRequest{Key: r.key, Template: template, Place: place, By: r.call.by}, asked.Suspect)
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

// ask starts a request to a node. The directory learns from the answer, even if it
// arrives after the wait has ended. If the record was suspect when the request was
// sent, the answer confirms it.
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
		default: // a suspicion may have been raised after the request was sent
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

// learn adds the owner that an error names to the directory.
func (f *Fleet) learn(err error) {
	if elsewhere, ok := errors.AsType[*holdfast.ElsewhereError](err); ok && elsewhere.Owner.Epoch > 0 {
		f.dir.Learn(elsewhere.Owner)
	}
}

// supersedes reports whether the record is newer than the node's answer can be.
func (s Snapshot) supersedes(node holdfast.NodeID, here, place bool) bool {
	switch {
	case !s.Known:
		return !place && !here // the node had the session and no longer has it
	case s.Owner.Node != node:
		return true
	case here:
		return false
	}
	return s.Owner.State == holdfast.Leaving || s.Owner.State == holdfast.Ready && !s.Suspect
}

// backOff waits for a change of the record or for the backoff, then reads the record
// from the store.
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
		_, _ = r.f.dir.Refresh(ctx, r.key) // after an error the next step looks again
	}
	return nil
}
