package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/hosts/doctor/ranking"
	"holdfast/internal/hosts/kube"
	"holdfast/internal/hosts/kube/survey"
)

// Intervals of reports, and the duration of the lease.
const (
	renewEvery  = 2 * time.Minute
	leaseLength = 10 * time.Minute
	settle      = time.Minute      // from the first Found until all findings are known
	looks       = 5                // renewals between two reads of the node, which may have been changed or recreated
	least       = 10 * time.Second // between two updates of conditions
	again       = time.Hour        // until an event about the same object may be repeated
	maxEvents   = 32               // queued events; more are dropped, and counted
	maxRecord   = 16 << 10         // bytes of a record
)

// component is the source of the events.
const component = "holdfast"

// Config identifies the node.
type Config struct {
	Node      string
	Namespace string // of the lease
	// Record returns the record of the node, nil if there is none yet. It must
	// not block.
	Record func() *ranking.Record
	// Renew is the minimum interval of lease renewals; 0: two minutes. For tests.
	Renew time.Duration
	// Taint is the effect, one of Effects, of a taint for each true condition;
	// "": no taints.
	Taint string
}

// Reporter reports a node to the API server. Run may be called once; Found at any
// time and from any goroutine.
type Reporter struct {
	client *kube.Client
	conf   Config
	log    *slog.Logger
	m      *Metrics

	mu     sync.Mutex
	known  time.Time // the first call of Found; zero: not yet
	open   []Finding
	events []kube.Event
	told   map[string]time.Time // time of the last event per object and rule
	wake   chan struct{}

	// Only used by Run's goroutine:
	uid     string
	unsure  bool             // the last write may be lost, or the node recreated
	have    []kube.Condition // as last seen on the API server
	before  []kube.Condition // those of have that an earlier agent left true
	lookAt  time.Time        // when to read the node again
	said    time.Time        // the last update of the conditions
	renew   time.Time        // when the lease is due
	bare    bool             // the lease has no record
	tainted []kube.Taint     // the node's taints for conditions, as the API server has them
	spread  bool             // the renewal after the next is moved to a random time
}

// New returns an idle Reporter. With a nil m its metrics are not registered.
func New(client *kube.Client, conf Config, m *Metrics, log *slog.Logger) *Reporter {
	conf.Renew = cmp.Or(conf.Renew, renewEvery)
	return &Reporter{client: client, conf: conf, log: log, m: cmp.Or(m, NewMetrics(prometheus.NewRegistry())), told: make(map[string]time.Time), wake: make(chan struct{}, 1)}
}

// Found sets the open findings. It does not block.
func (r *Reporter) Found(open []Finding) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := time.Now()
	maps.DeleteFunc(r.told, func(_ string, t time.Time) bool { return at.Sub(t) > again })
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
	default: // a wakeup is already pending
	}
}

// event queues events for a finding: one on the node, and one on the pod that
// causes it.
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
			r.m.dropped.Inc()
			continue
		}
		r.told[key] = at
		r.events = append(r.events, kube.Event{
			Name: kube.EventName(about.Name), About: about, Warning: true, Reason: reason(f.Rule), Message: message(f), Component: component, Host: r.conf.Node, At: at,
		})
	}
}

// Run reports until ctx is done. If the API server does not answer or refuses a
// report, it retries with backoff and with the then current state. Until Found is
// called it does not touch the conditions. For a minute after that, conditions
// that an earlier agent left true stay true.
func (r *Reporter) Run(ctx context.Context) error {
	defer r.untaint(ctx)
	failures := 0
	r.renew, r.spread = time.Now(), true // at once
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
			r.m.failures.Inc()
			if failures == 1 {
				r.log.Warn("kubernetes: reporting this node to the API server failed; trying again", "err", err)
			}
		default:
			if failures > 0 {
				r.log.Info("kubernetes: reporting this node to the API server works again")
			}
			failures = 0
		}
		if r.pause(ctx, wait, failures > 0) != nil {
			return nil
		}
	}
	return nil
}

// pause waits. Without failures it ends early when something new is to be
// reported.
func (r *Reporter) pause(ctx context.Context, wait time.Duration, failing bool) error {
	timer := time.NewTimer(max(wait, 0))
	defer timer.Stop()
	wake := r.wake
	if failing {
		wake = nil // new findings are reported with the next try
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	case <-wake:
	}
	// Findings often change together, and some flap.
	return kube.Sleep(ctx, max(0, least-time.Since(r.said)))
}

// patience returns the backoff after failures. It is longest after a permanent
// refusal.
func (r *Reporter) patience(failures int, err error) time.Duration {
	if kube.Transient(err) {
		return kube.Pause(failures, err)
	}
	return kube.PauseUpTo(renewEvery, failures, err)
}

// next returns the time until the next due action if nothing new is found.
func (r *Reporter) next() time.Duration {
	wait := time.Until(r.renew)
	if r.bare {
		wait = min(wait, least) // a record may be available by then
	}
	return wait
}

// round makes all due reports. It stops at the first failure of the API server.
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

// look reads the node: at the start, after a write that may be lost, and at
// intervals.
func (r *Reporter) look(ctx context.Context) error {
	read := r.client.Node
	if r.uid != "" && !r.unsure {
		if time.Now().Before(r.lookAt) {
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
		wait = rand.N(wait) // spread the reads of agents that started together
	}
	r.unsure = false
	r.uid, r.have, r.lookAt = n.Meta.UID, n.Status.Conditions, time.Now().Add(wait)
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
	if time.Since(known) < settle { // a finding is confirmed only after several looks
		r.before, now = keep(r.before, now)
	}
	list, differs := changed(r.have, now, time.Now().UTC().Truncate(time.Second))
	if !differs {
		return nil
	}
	err := r.client.SetConditions(ctx, r.conf.Node, list)
	if err != nil {
		r.unsure = true
		return fmt.Errorf("conditions: %w", err)
	}
	r.have, r.said = list, time.Now()
	return nil
}

// tell writes the queued events. An event that the API server refuses is dropped,
// for example because its pod's namespace is gone.
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
			e.About.UID = r.conf.Node // as the kubelet sets it; `kubectl describe` selects by it
		}
		err := r.client.Tell(ctx, e)
		switch {
		case err == nil:
		case unwanted(err):
			r.m.dropped.Inc()
			r.log.Debug("kubernetes: an event was refused", "about", e.About.Name, "err", err)
		case kube.Code(err) != http.StatusConflict: // 409: it was written, and the answer was lost
			return fmt.Errorf("event: %w", err)
		}
		r.mu.Lock()
		r.events = r.events[1:]
		r.mu.Unlock()
	}
}

// unwanted reports whether the event would be refused again.
func unwanted(err error) bool {
	switch kube.Code(err) {
	case http.StatusBadRequest, http.StatusForbidden, http.StatusNotFound, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

// lease renews the lease if it is due, or if the first record is available.
func (r *Reporter) lease(ctx context.Context) error {
	early := time.Now().Before(r.renew)
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
	wait := every + rand.N(every/8) // so that 5,000 agents do not renew at the same time
	if r.spread {
		wait = every/4 + rand.N(every*3/4)
	}
	r.renew, r.bare, r.spread = time.Now().Add(wait), record == nil, false
	return nil
}
