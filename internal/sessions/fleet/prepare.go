package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sort"
	"sync"
	"time"

	"holdfast"
)

// Bounds of an announcement.
const (
	maxPrepared  = 4096             // sessions in one request
	maxTemplates = 64               // in one request
	maxPrepWait  = 20 * time.Second // for images
	fetchTime    = 5 * time.Minute  // for one template's images; continues after the answer
	prepareTime  = 5 * time.Second  // if the caller sets no deadline
)

// Departing is a session that is to leave this node. Nodes send it to each other.
type Departing struct {
	Key       holdfast.SessionKey `json:"key"`
	Epoch     holdfast.Epoch      `json:"epoch"`
	Template  string              `json:"template,omitempty"`
	Connected bool                `json:"connected,omitempty"` // clients are connected: it goes first
}

// DepartingOf returns the session of a record as a departing one.
func DepartingOf(o holdfast.Owner, connected bool) Departing {
	return Departing{Key: o.Key, Epoch: o.Epoch, Template: o.Template, Connected: connected}
}

// prepareRequest announces sessions to their successor. The successor claims each
// session when its record is gone.
type prepareRequest struct {
	From     holdfast.NodeID `json:"from"`
	Sessions []Departing     `json:"sessions"`
	WaitMS   int64           `json:"wait_ms"` // for the images
}

type prepareAnswer struct {
	Accepted int        `json:"accepted"`        // number of accepted sessions, from the first on, of those that the node can run
	Lacks    []string   `json:"lacks,omitempty"` // templates whose sessions it cannot run
	Why      string     `json:"why,omitempty"`   // reason for the first of them
	Images   bool       `json:"images"`          // all images are present
	Error    *wireError `json:"error,omitempty"`
}

func (q prepareRequest) check() error {
	if len(q.Sessions) > maxPrepared {
		return fmt.Errorf("%d sessions, at most %d are allowed", len(q.Sessions), maxPrepared)
	}
	if n := len(q.templates()); n > maxTemplates {
		return fmt.Errorf("%d templates, at most %d are allowed", n, maxTemplates)
	}
	for _, s := range q.Sessions {
		if _, err := holdfast.ParseSessionKey(string(s.Key)); err != nil {
			return err
		}
		if err := checkTemplate(s.Template); err != nil {
			return err
		}
		if s.Epoch <= 0 {
			return fmt.Errorf("session %s: its epoch is %d", s.Key, s.Epoch)
		}
	}
	return nil
}

func (q prepareRequest) templates() []string {
	names := make([]string, len(q.Sessions))
	for i, s := range q.Sessions {
		names[i] = s.Template
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// wait returns how long the node waits for the images.
func (q prepareRequest) wait() time.Duration {
	return min(max(time.Duration(q.WaitMS), 0), maxPrepWait/time.Millisecond) * time.Millisecond
}

// Prepare chooses a successor for each session and informs all successors in parallel.
// It returns how many sessions have a successor. Sessions that a node refuses, or does
// not accept within seven eighths of the time, are distributed among the other nodes
// once more. Prepare returns when all successors have the images or ctx is done;
// without a deadline it takes five seconds at most. A successor claims a session only
// after the session's record is gone. If two nodes have the announcement, one claim succeeds.
func (f *Fleet) Prepare(ctx context.Context, sessions []Departing) int {
	ctx, cancel := context.WithTimeout(ctx, remaining(ctx))
	defer cancel()
	all, err := f.nodes.all(ctx)
	if err != nil {
		f.log.Warn("no successors are chosen", "sessions", len(sessions), "err", err)
		return 0
	}
	f.clearSuccessors(sessions)
	a := &announcement{f: f, all: all, avoid: map[holdfast.NodeID]bool{f.cfg.Node: true}}
	sessions = slices.Clone(sessions)
	sort.SliceStable(sessions, func(i, j int) bool { return rank(sessions[i]) < rank(sessions[j]) })
	a.tell(ctx, sessions, true)
	a.told.Wait()
	return a.accepted
}

// announcement is the state of one Prepare.
type announcement struct {
	f    *Fleet
	told sync.WaitGroup

	mu       sync.Mutex
	all      []holdfast.Node // with the sessions that were assigned to them
	avoid    map[holdfast.NodeID]bool
	accepted int
}

// tell announces the sessions in goroutines, those with clients first. If again is
// true, refused sessions are announced to other nodes.
func (a *announcement) tell(ctx context.Context, sessions []Departing, again bool) {
	for node, part := range a.share(sessions) {
		for _, part := range byTemplates(part) {
			a.told.Go(func() {
				limit := remaining(ctx)
				if again {
					limit -= limit / 8
				}
				limited, cancel := context.WithTimeout(ctx, limit)
				defer cancel()
				refused, err := a.f.tell(limited, node, part)
				if err != nil {
					a.f.log.Warn("a successor refuses sessions", "node", node.ID, "sessions", len(refused), "err", err)
				}
				a.mu.Lock()
				a.accepted += len(part) - len(refused)
				a.avoid[node.ID] = a.avoid[node.ID] || len(refused) > 0
				a.mu.Unlock()
				if again && len(refused) > 0 && ctx.Err() == nil {
					a.tell(ctx, refused, false)
				}
			})
		}
	}
}

// remaining returns how long Prepare may take.
func remaining(ctx context.Context) time.Duration {
	if until, ok := ctx.Deadline(); ok {
		return time.Until(until)
	}
	return prepareTime
}

// share chooses a node for each session, in their order. Sessions that it assigns to a
// node count as load of that node.
func (a *announcement) share(sessions []Departing) map[holdfast.Node][]Departing {
	a.mu.Lock()
	defer a.mu.Unlock()
	avoid := maps.Clone(a.avoid)
	resting := holdfast.OutOfRotation(a.all, a.f.cfg.MaxShare)
	byNode := map[*holdfast.Node][]Departing{}
	for _, s := range sessions {
		n, err := Place(a.all, Need{Avoid: avoid, OutOfRotation: resting}, a.f.nodes.rand)
		if err != nil {
			a.f.log.Debug("no more successors", "err", err)
			break
		}
		countPlaced(n)
		byNode[n] = append(byNode[n], s)
		if len(byNode[n]) == maxPrepared {
			avoid[n.ID] = true
		}
	}
	shares := map[holdfast.Node][]Departing{}
	for n, part := range byNode {
		shares[*n] = part
	}
	return shares
}

// byTemplates splits sessions so that no part has more templates than one request may
// contain. Each part keeps the order.
func byTemplates(sessions []Departing) (parts [][]Departing) {
	numbers := map[string]int{}
	for _, s := range sessions {
		n, ok := numbers[s.Template]
		if !ok {
			n = len(numbers)
			numbers[s.Template] = n
		}
		if n/maxTemplates == len(parts) {
			parts = append(parts, nil)
		}
		parts[n/maxTemplates] = append(parts[n/maxTemplates], s)
	}
	return parts
}

func rank(d Departing) int {
	if d.Connected {
		return 0
	}
	return 1
}

// tell announces sessions to their successor. It returns the sessions that the
// successor refuses, in their order, with the reason.
func (f *Fleet) tell(ctx context.Context, to holdfast.Node, sessions []Departing) (refused []Departing, err error) {
	// The answer needs time, too.
	wait := remaining(ctx) * 3 / 4
	q := prepareRequest{From: f.cfg.Node, Sessions: sessions, WaitMS: wait.Milliseconds()}
	var a prepareAnswer
	err = f.peers.post(ctx, to, pathPrepare, q, &a)
	if err == nil && a.Error != nil {
		err = a.Error.err()
	}
	if err != nil {
		return sessions, err
	}
	able, lacking := a.split(sessions)
	n := min(max(a.Accepted, 0), len(able))
	f.setSuccessor(to, able[:n])
	switch {
	case len(lacking) > 0:
		err = fmt.Errorf("node %s cannot run %d of them (%.256s): %w", to.ID, len(lacking), a.Why, holdfast.ErrNotFound)
	case n < len(able):
		err = fmt.Errorf("node %s accepts %d of %d: %w", to.ID, n, len(able), holdfast.ErrBusy)
	}
	return append(slices.Clone(able[n:]), lacking...), err
}

// split divides sessions into those that the answering node can run and the others.
func (a prepareAnswer) split(sessions []Departing) (able, lacking []Departing) {
	for _, s := range sessions {
		if slices.Contains(a.Lacks, s.Template) {
			lacking = append(lacking, s)
		} else {
			able = append(able, s)
		}
	}
	return able, lacking
}

// PrepareOne tells one node to take a session over. With to == "" it chooses a node
// that accepts the session. It returns that node. The successor claims the session
// only after its record is gone. Errors: holdfast.ErrNotFound if there is no such node
// or it cannot run the session, ErrDraining, ErrBusy.
func (f *Fleet) PrepareOne(ctx context.Context, d Departing, to holdfast.NodeID) (holdfast.NodeID, error) {
	s := []Departing{d}
	if to != "" {
		n, err := f.named(ctx, to)
		if err == nil {
			_, err = f.tell(ctx, n, s)
		}
		if err != nil {
			return "", fmt.Errorf("session %s cannot move to node %s: %w", d.Key, to, err)
		}
		return to, nil
	}
	avoid := map[holdfast.NodeID]bool{f.cfg.Node: true}
	var last error
	for range triesPerRound {
		n, err := f.nodes.place(ctx, avoid, "")
		if err != nil {
			return "", fmt.Errorf("session %s cannot move: %w", d.Key, cmp.Or(last, err))
		}
		if _, last = f.tell(ctx, n, s); last == nil {
			return n.ID, nil
		}
		avoid[n.ID] = true
	}
	return "", fmt.Errorf("session %s cannot move: %w", d.Key, last)
}

// named returns a node by its id, if it accepts sessions.
func (f *Fleet) named(ctx context.Context, id holdfast.NodeID) (holdfast.Node, error) {
	if err := f.nodes.ensure(ctx, id); err != nil {
		return holdfast.Node{}, err
	}
	n, ok := f.nodes.get(id)
	switch {
	case !ok:
		return n, holdfast.WithHint(fmt.Errorf("there is no such node: %w", holdfast.ErrNotFound), "holdfast node ls lists them")
	case n.Draining:
		return n, holdfast.WithHint(fmt.Errorf("it accepts no sessions: %w", holdfast.ErrDraining), "holdfast node uncordon "+string(id))
	case n.PeerAddress == "":
		return n, errUnreachable
	case full(&n):
		return n, fmt.Errorf("it has %d sessions, which is its limit: %w", n.Sessions, holdfast.ErrBusy)
	}
	return n, nil
}

// prepare receives an announcement. It runs on the successor.
func (h *handler) prepare(w http.ResponseWriter, r *http.Request) {
	var q prepareRequest
	from, ok := h.read(w, r, maxPrepareBody, &q)
	if !ok {
		return
	}
	if q.From != from {
		http.Error(w, "a node announces its own sessions only", http.StatusForbidden)
		return
	}
	if h.f.deps.Draining() {
		writeAnswer(w, prepareAnswer{Error: toWire(fmt.Errorf("node %s: %w", h.f.cfg.Node, holdfast.ErrDraining))})
		return
	}
	h.f.respond(w, r, q.wait()+time.Second, func(ctx context.Context) any {
		a := h.f.able(q.templates())
		q.Sessions, _ = a.split(q.Sessions)
		a.Accepted = h.f.next.add(from, q.Sessions)
		h.f.log.Info("sessions are announced for handover", "from", from, "sessions", a.Accepted, "lacks", a.Lacks)
		waiting, cancel := context.WithTimeout(ctx, q.wait())
		defer cancel()
		a.Images = h.f.fetch(waiting, q.templates())
		return a
	})
}

// able returns an answer that lists the templates that this node cannot run.
func (f *Fleet) able(templates []string) (a prepareAnswer) {
	for _, t := range templates {
		if err := f.deps.CanRun(t); err != nil {
			if a.Why == "" {
				a.Why = cut(err.Error(), maxText)
			}
			a.Lacks = append(a.Lacks, t)
		}
	}
	return a
}

// fetch starts to fetch the templates' images and reports whether they are present
// before ctx is done. The fetch continues after that.
func (f *Fleet) fetch(ctx context.Context, templates []string) bool {
	fetched := make(chan error, len(templates))
	for _, name := range templates {
		started := f.tasks.Go(func(life context.Context) {
			_, err, _ := f.fetches.Do(name, func() (any, error) { return nil, f.fetchOne(life, name) })
			fetched <- err
		})
		if !started {
			return false
		}
	}
	ok := true
	for range templates {
		select {
		case err := <-fetched:
			ok = ok && err == nil
		case <-ctx.Done():
			return false
		}
	}
	return ok
}

func (f *Fleet) fetchOne(ctx context.Context, template string) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	err := f.deps.Fetch(ctx, template)
	if err != nil && !errors.Is(err, context.Canceled) {
		f.log.Warn("fetching the images of announced sessions failed", "template", template, "err", err)
	}
	return err
}
