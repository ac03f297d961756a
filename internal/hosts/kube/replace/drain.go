package replace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/hosts/kube"
)

// Drain drains nodes with the same requests as `kubectl drain` in the same order.
type Drain struct {
	Client *kube.Client
	Rules  Rules
	Grace  int // the pods' grace period in seconds; negative: their own
	// Patience is how long the API server may be unreachable or overloaded at a
	// time.
	Patience time.Duration
	// Again is the minimum wait after a disruption budget has refused an
	// eviction; 0: 5 s.
	Again time.Duration
	// Look is the minimum interval of checks whether a pod is gone; 0: 1 s.
	Look time.Duration
	// Said receives progress messages about pods; it may be nil. Calls may be
	// concurrent.
	Said func(pod kube.Meta, what string)
	// Accepted receives each pod of which the API server has accepted the eviction,
	// or which is gone; it may be nil. Calls may be concurrent. Its error ends the
	// eviction of the pod.
	Accepted func(ctx context.Context, pod kube.Meta) error
	// Trouble receives errors of the API server and the pause after each; it may
	// be nil. Calls may be concurrent.
	Trouble func(err error, pause time.Duration)
}

// Defaults, and the longest pause between two looks.
const (
	againAfter = 5 * time.Second
	lookEvery  = time.Second
	lookSeldom = 5 * time.Second
)

// atOnce limits the concurrent requests of a drain.
const atOnce = 16

// Treated is a pod with its treatment.
type Treated struct {
	Pod       kube.Pod
	Treatment Treatment
	Why       string
}

// Pods lists a node's pods, in the API server's order, with the treatment of
// each.
func (d Drain) Pods(ctx context.Context, node string) ([]Treated, error) {
	var pods []kube.Pod
	err := d.patiently(ctx, func() (err error) { pods, err = d.Client.PodsOn(ctx, node); return err })
	if err != nil {
		return nil, err
	}
	list := make([]Treated, 0, len(pods))
	for _, p := range pods {
		var gone error
		if p.OfDaemonSet() && !p.Finished() {
			gone = d.patiently(ctx, func() error {
				return d.Client.DaemonSet(ctx, p.Meta.Namespace, p.Meta.Controlling().Name)
			})
			if gone != nil && (ctx.Err() != nil || kube.Transient(gone)) {
				return nil, gone
			}
		}
		t := Treated{Pod: p}
		t.Treatment, t.Why = d.Rules.Treat(p, gone)
		list = append(list, t)
	}
	return list, nil
}

// RefusedError means that the rules forbid draining a node.
type RefusedError struct {
	Node string
	Pods []Treated
}

func (e *RefusedError) Error() string {
	var s []string
	for i, t := range e.Pods {
		if i == 5 {
			s = append(s, fmt.Sprintf("and %d more", len(e.Pods)-i))
			break
		}
		s = append(s, fmt.Sprintf("pod %s/%s: %s", t.Pod.Meta.Namespace, t.Pod.Meta.Name, t.Why))
	}
	return fmt.Sprintf("node %s cannot be drained: %s", e.Node, strings.Join(s, "; "))
}

// Hint implements holdfast.Hinter.
func (e *RefusedError) Hint() string {
	return "--delete-emptydir-data and --force allow it; what they delete is lost"
}

// Evictable returns the pods to evict, or an error if a pod forbids the drain.
func Evictable(node string, all []Treated) ([]kube.Pod, error) {
	var pods []kube.Pod
	refused := &RefusedError{Node: node}
	for _, t := range all {
		switch t.Treatment {
		case Evict:
			pods = append(pods, t.Pod)
		case Refuse:
			refused.Pods = append(refused.Pods, t)
		}
	}
	if len(refused.Pods) > 0 {
		return nil, refused
	}
	return pods, nil
}

// Evict evicts all pods concurrently. It returns when they are gone, when ctx is
// done, or when one cannot be evicted and the others have ended.
func (d Drain) Evict(ctx context.Context, pods []kube.Pod) error {
	slots := make(chan struct{}, atOnce)
	errs := make([]error, len(pods))
	var wg sync.WaitGroup
	for i, p := range pods {
		wg.Go(func() {
			one := eviction{Drain: d, pod: p, slots: slots}
			if err := one.run(ctx); err != nil {
				errs[i] = fmt.Errorf("pod %s/%s: %w", p.Meta.Namespace, p.Meta.Name, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// eviction is the eviction of one pod.
type eviction struct {
	Drain
	pod   kube.Pod
	slots chan struct{}
}

// in calls do in one of the drain's slots, with retries.
func (e *eviction) in(ctx context.Context, do func() error) error {
	return e.patiently(ctx, func() error {
		select {
		case e.slots <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		defer func() { <-e.slots }()
		return do()
	})
}

func (d Drain) patiently(ctx context.Context, do func() error) error {
	return kube.Patiently(ctx, d.Patience, do, d.Trouble)
}

func (d Drain) say(p kube.Meta, format string, a ...any) {
	if d.Said != nil {
		d.Said(p, fmt.Sprintf(format, a...))
	}
}

func (e *eviction) run(ctx context.Context) error {
	gone, err := e.ask(ctx)
	if err == nil && e.Accepted != nil {
		err = e.Accepted(ctx, e.pod.Meta)
	}
	if gone || err != nil {
		return err
	}
	return e.gone(ctx)
}

// ask asks for the eviction until it is accepted, or the pod is gone.
func (e *eviction) ask(ctx context.Context) (gone bool, err error) {
	for {
		var refused error
		err := e.in(ctx, func() error {
			refused = nil // from an earlier try
			err := e.Client.Evict(ctx, e.pod.Meta, e.Grace)
			if e.wait(err) {
				refused, err = err, nil
			}
			return err
		})
		if kube.Code(refused) == http.StatusConflict { // the name may belong to another pod
			if gone, err := e.fresh(ctx); gone || err != nil {
				return gone, err
			}
		}
		switch {
		case err == nil && refused == nil:
			e.say(e.pod.Meta, "evicted")
			return false, nil
		case errors.Is(err, holdfast.ErrNotFound):
			return true, nil
		case err != nil:
			return false, err
		}
		if e.pod.Meta.Deleted != nil && kube.HasCause(refused, kube.CauseNamespace) {
			return false, nil // it is already terminating
		}
		e.say(e.pod.Meta, "not now: %v", refused)
		if err := kube.Sleep(ctx, max(cmp.Or(e.Again, againAfter), kube.RetryAfter(refused))); err != nil {
			return false, refused
		}
		if gone, err := e.fresh(ctx); gone || err != nil {
			return gone, err
		}
	}
}

// wait reports whether a refusal is temporary: by a budget, because the namespace
// is being deleted, or because of a conflicting change of the pod.
func (e *eviction) wait(err error) bool {
	switch kube.Code(err) {
	case http.StatusTooManyRequests: // or the API server is overloaded
		return kube.HasCause(err, kube.CauseBudget)
	case http.StatusConflict:
		return true
	case http.StatusForbidden:
		return kube.HasCause(err, kube.CauseNamespace)
	}
	return false
}

// fresh reads the pod again, and reports whether it is gone.
func (e *eviction) fresh(ctx context.Context) (gone bool, err error) {
	var now kube.Pod
	err = e.in(ctx, func() (err error) {
		now, err = e.Client.Pod(ctx, e.pod.Meta.Namespace, e.pod.Meta.Name)
		return err
	})
	switch {
	case errors.Is(err, holdfast.ErrNotFound), err == nil && now.Meta.UID != e.pod.Meta.UID:
		return true, nil
	case err != nil:
		return false, err
	}
	e.pod = now
	return false, nil
}

// gone waits until the pod is gone.
func (e *eviction) gone(ctx context.Context) error {
	pause := cmp.Or(e.Look, lookEvery)
	for {
		if gone, err := e.fresh(ctx); gone || err != nil {
			if gone {
				e.say(e.pod.Meta, "gone")
			}
			return err
		}
		if err := kube.Sleep(ctx, pause); err != nil {
			return fmt.Errorf("it has not ended: %w", err)
		}
		pause = min(pause*5/4, max(lookSeldom, e.Look))
	}
}
