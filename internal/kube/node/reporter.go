package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"holdfast/internal/doctor/ranking"
	"holdfast/internal/kube"
	"holdfast/internal/kube/survey"
)

// How often is told what, and how long a lease says that the agent may be silent.
const (
	renewEvery  = 2 * time.Minute
	leaseLength = 10 * time.Minute
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
	open    []Finding
	events  []kube.Event
	told    map[string]time.Time // when an event was asked for last, by what it is about
	dropped int
	wake    chan struct{}

	// Of Run's goroutine alone:
	uid  string
	have []kube.Condition // as the API server has them
	said time.Time        // conditions, last
}

// New returns a Reporter that does nothing yet; m may be nil.
func New(client *kube.Client, conf Config, m *Metrics, log *slog.Logger) *Reporter {
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
			About: about, Warning: true, Reason: reason(f.Rule), Message: message(f), Component: component, Host: r.conf.Node, At: at,
		})
	}
}

// Run tells until ctx is done. Where the API server does not answer it tries again,
// more and more seldom, with what is so by then.
func (r *Reporter) Run(ctx context.Context) error {
	failures := 0
	renew := r.now() // at once
	for ctx.Err() == nil {
		err := r.round(ctx, &renew)
		wait := time.Until(renew)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			failures++
			wait = kube.Pause(failures, err)
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

// round says all that there is to say.
func (r *Reporter) round(ctx context.Context, renew *time.Time) error {
	if r.uid == "" {
		n, err := r.client.Node(ctx, r.conf.Node)
		if err != nil {
			return err
		}
		r.uid, r.have = n.Meta.UID, n.Status.Conditions
	}
	err := errors.Join(r.conditions(ctx), r.tell(ctx))
	if err == nil && !r.now().Before(*renew) {
		record := r.conf.Record()
		if err = r.lease(ctx, record); err == nil {
			*renew = r.now().Add(renewEvery + rand.N(renewEvery/8)) // 5,000 agents do not come together
		}
		if record == nil {
			*renew = r.now().Add(least) // there is more to say soon
		}
	}
	return err
}

func (r *Reporter) conditions(ctx context.Context) error {
	r.mu.Lock()
	now := Conditions(r.open)
	r.mu.Unlock()
	list, differs := changed(r.have, now, r.now().UTC().Truncate(time.Second))
	if !differs {
		return nil
	}
	err := r.client.SetConditions(ctx, r.conf.Node, list)
	if err != nil {
		r.uid = "" // it may be another node of the name by now
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
		if err := r.client.Tell(ctx, e); kube.Transient(err) || ctx.Err() != nil {
			return fmt.Errorf("event: %w", err)
		} else if err != nil {
			r.m.drop()
			r.log.Debug("kubernetes: an event was not taken", "about", e.About.Name, "err", err)
		}
		r.mu.Lock()
		r.events = r.events[1:]
		r.mu.Unlock()
	}
}

func (r *Reporter) lease(ctx context.Context, record *ranking.Record) error {
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
	return nil
}
