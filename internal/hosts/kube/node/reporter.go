package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"holdfast/internal/hosts/doctor/ranking"
	"holdfast/internal/hosts/kube"
	"holdfast/internal/hosts/kube/survey"
)

// How often is told what, and how long a lease says that the agent may be silent.
const (
	renewEvery  = 2 * time.Minute
	leaseLength = 10 * time.Minute
	settle      = time.Minute      // from when somebody says what is open until all is known
	looks       = 5                // renewals between two looks at the node: somebody may have changed it, or made it anew
	least       = 10 * time.Second // between two reports of conditions
	again       = time.Hour        // until an event about the same may be told again
	maxEvents   = 32               // that wait to be told; more are dropped, and counted
	maxRecord   = 16 << 10         // bytes of a record
)

// component is who tells of events.
const component = "holdfast"

// Config says which node it is.
type Config struct {
	Node      string
	Namespace string // of the lease
	// Record is what to say of the node; nil where nothing is known yet. It must not
	// block.
	Record func() *ranking.Record
	// Renew is how long a renewal of the lease does, at least; 0: two minutes. For
	// tests.
	Renew time.Duration
	// Taint is the effect of a taint that the node gets for each condition that is
	// true, one of Effects; "": it gets none.
	Taint string
}

// Reporter tells the API server of a node. Run may be called once; Found at any time and
// from any goroutine.
type Reporter struct {
	client *kube.Client
	conf   Config
	log    *slog.Logger
	m      *Metrics
	now    func() time.Time

	mu      sync.Mutex
	known   time.Time // when somebody said what is open for the first time; zero: nobody has
	open    []Finding
	events  []kube.Event
	told    map[string]time.Time // when an event was asked for last, by what it is about
	dropped int
	wake    chan struct{}

	// Of Run's goroutine alone:
	uid     string
	unsure  bool             // whether the last write was done, and to the same node
	have    []kube.Condition // as the API server has them
	before  []kube.Condition // of them, those that an earlier agent has left as true
	lookAt  time.Time        // when the node is to be looked at again
	said    time.Time        // conditions, last
	renew   time.Time        // when the lease is due
	bare    bool             // the lease is without a record
	tainted []kube.Taint     // the node's taints of ours, as the API server has them
	spread  bool             // the renewal after the next takes its place among the others' at random
}

// New returns a Reporter that does nothing yet; m may be nil.
func New(client *kube.Client, conf Config, m *Metrics, log *slog.Logger) *Reporter {
	if conf.Renew <= 0 {
		conf.Renew = renewEvery
	}
	return &Reporter{client: client, conf: conf, log: log, m: m, now: time.Now, told: make(map[string]time.Time), wake: make(chan struct{}, 1)}
}

// Found says which findings are open now. It does not block.
func (r *Reporter) Found(open []Finding) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := r.now()
	for key, t := range r.told {
		if at.Sub(t) > again {
			delete(r.told, key)
		}
	}
	for _, f := range open {
		if counts(f.Severity) {
			r.event(f, at)
		}
	}
	r.open = slices.Clone(open)
	if r.known.IsZero() {
		r.known = at
	}
	select {
	case r.wake <- struct{}{}:
	default: // it is awake
	}
}

// event has a finding told of: on the node, and on the pod that does it.
func (r *Reporter) event(f Finding, at time.Time) {
	abouts := []kube.Reference{{Kind: "Node", Name: r.conf.Node}}
	if f.Pod != nil {
		abouts = append(abouts, *f.Pod)
	}
	for _, about := range abouts {
		key := f.Rule + " " + about.Kind + " " + about.Namespace + "/" + about.Name
		if _, lately := r.told[key]; lately {
			continue
		}
		if len(r.events) >= maxEvents {
			r.dropped++
			r.m.drop()
			continue
		}
		r.told[key] = at
		r.events = append(r.events, kube.Event{
			Name: kube.EventName(about.Name), About: about, Warning: true, Reason: reason(f.Rule), Message: message(f), Component: component, Host: r.conf.Node, At: at,
		})
	}
}

// Run tells until ctx is done. Where the API server does not answer, or does not want
// it, it tries again, more and more seldom, with what is so by then. Until Found was
// called it says nothing of conditions, and for a minute after that those that an
// earlier agent has left as true stay so.
func (r *Reporter) Run(ctx context.Context) error {
	defer r.untaint(ctx)
	failures := 0
	r.renew, r.spread = r.now(), true // at once
	for ctx.Err() == nil {
		err := r.round(ctx)
		wait := r.next()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			failures++
			wait = r.patience(failures, err)
			r.spread = true // others have lost the same server
			r.m.fail()
			if failures == 1 {
				r.log.Warn("kubernetes: the API server could not be told of this node; trying again", "err", err)
			}
		default:
			if failures > 0 {
				r.log.Info("kubernetes: the API server knows of this node again")
			}
			failures = 0
		}
		if r.pause(ctx, wait, failures > 0) != nil {
			return nil
		}
	}
	return nil
}

// pause waits, in good times no longer than until there is something new to say.
func (r *Reporter) pause(ctx context.Context, wait time.Duration, failing bool) error {
	timer := time.NewTimer(max(wait, 0))
	defer timer.Stop()
	wake := r.wake
	if failing {
		wake = nil // what is new is said with the next try
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	case <-wake:
	}
	// Findings come and go together, and some flap.
	return kube.Sleep(ctx, max(0, least-r.now().Sub(r.said)))
}

// patience is how long to wait after failures. What the API server refuses for good it
// will hardly allow soon.
func (r *Reporter) patience(failures int, err error) time.Duration {
	if kube.Transient(err) {
		return kube.Pause(failures, err)
	}
	return kube.PauseUpTo(renewEvery, failures, err)
}

// next is how long it is until there is something to do where nothing new is found.
func (r *Reporter) next() time.Duration {
	wait := r.renew.Sub(r.now())
	if r.bare {
		wait = min(wait, least) // there may be a record by then
	}
	return wait
}

// round says all that there is to say. Where the API server has failed it is asked for
// nothing more.
func (r *Reporter) round(ctx context.Context) error {
	if err := r.look(ctx); err != nil {
		return err
	}
	var errs []error
	for _, step := range []func(context.Context) error{r.conditions, r.taints, r.tell, r.lease} {
		err := step(ctx)
		errs = append(errs, err)
		if kube.Transient(err) || ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// look reads the node: at the start, where the last write may have been lost, and else
// now and then.
func (r *Reporter) look(ctx context.Context) error {
	read := r.client.Node
	if r.uid != "" && !r.unsure {
		if r.now().Before(r.lookAt) {
			return nil
		}
		read = r.client.SeenNode
	}
	n, err := read(ctx, r.conf.Node)
	if err != nil {
		return fmt.Errorf("node: %w", err)
	}
	wait := looks * r.conf.Renew
	if r.lookAt.IsZero() {
		r.before = left(n.Status.Conditions)
		wait = rand.N(wait) // agents that began together do not look together
	}
	r.unsure = false
	r.uid, r.have, r.lookAt = n.Meta.UID, n.Status.Conditions, r.now().Add(wait)
	_, r.tainted = apart(n.Spec.Taints)
	return nil
}

func (r *Reporter) conditions(ctx context.Context) error {
	r.mu.Lock()
	now, known := Conditions(r.open), r.known
	r.mu.Unlock()
	if known.IsZero() {
		return nil
	}
	if r.now().Sub(known) < settle { // a finding has to be seen more than once
		r.before, now = keep(r.before, now)
	}
	list, differs := changed(r.have, now, r.now().UTC().Truncate(time.Second))
	if !differs {
		return nil
	}
	err := r.client.SetConditions(ctx, r.conf.Node, list)
	if err != nil {
		r.unsure = true
		return fmt.Errorf("conditions: %w", err)
	}
	r.have, r.said = list, r.now()
	return nil
}

// tell writes the events that wait. One that the API server does not want is dropped: its
// pod's namespace is gone, for one.
func (r *Reporter) tell(ctx context.Context) error {
	for {
		r.mu.Lock()
		if len(r.events) == 0 {
			r.mu.Unlock()
			return nil
		}
		e := r.events[0]
		r.mu.Unlock()
		if e.About.Kind == "Node" {
			e.About.UID = r.conf.Node // as the kubelet has it, which `kubectl describe` looks for
		}
		err := r.client.Tell(ctx, e)
		switch {
		case err == nil:
		case unwanted(err):
			r.m.drop()
			r.log.Debug("kubernetes: an event was not taken", "about", e.About.Name, "err", err)
		case kube.Code(err) != http.StatusConflict: // 409: it was told, and the answer was lost
			return fmt.Errorf("event: %w", err)
		}
		r.mu.Lock()
		r.events = r.events[1:]
		r.mu.Unlock()
	}
}

// unwanted reports whether an event would be refused again.
func unwanted(err error) bool {
	switch kube.Code(err) {
	case http.StatusBadRequest, http.StatusForbidden, http.StatusNotFound, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

// lease renews the lease where that is due, and where there is a record at last.
func (r *Reporter) lease(ctx context.Context) error {
	early := r.now().Before(r.renew)
	if early && !r.bare {
		return nil
	}
	record := r.conf.Record()
	if early && record == nil {
		return nil
	}
	notes := map[string]string{}
	if record != nil {
		b, err := json.Marshal(record)
		if err != nil {
			return err
		}
		if len(b) <= maxRecord {
			notes[survey.RecordAnnotation] = string(b)
		}
	}
	owner := kube.Owner{APIVersion: "v1", Kind: "Node", Name: r.conf.Node, UID: r.uid}
	if err := r.client.Renew(ctx, r.conf.Namespace, r.conf.Node, r.conf.Node, leaseLength, notes, &owner); err != nil {
		return fmt.Errorf("lease: %w", err)
	}
	every := r.conf.Renew
	wait := every + rand.N(every/8) // 5,000 agents do not come together
	if r.spread {
		wait = every/4 + rand.N(every*3/4)
	}
	r.renew, r.bare, r.spread = r.now().Add(wait), record == nil, false
	return nil
}
