package replace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/hosts/kube"
)

// SurgeLabel is the label of a workload that a run has enlarged: RUN.FROM.TO, its
// numbers of pods before and since. Both change in one request, so that a later run
// finds and undoes what a killed process leaves. A label is used because the
// Deployment controller copies annotations to ReplicaSets, where they would stay.
const SurgeLabel = "holdfast.dev/surge"

// SurgeAnnotation of a pod with the value "never" excludes its workload.
const SurgeAnnotation = "holdfast.dev/surge"

// Limits of the wait for a controller that replaces evicted pods.
const (
	seenLimit = time.Minute
	seenEvery = 200 * time.Millisecond
)

// Kinds of workloads that may be enlarged, of apps/v1.
const (
	appsV1         = "apps/v1"
	deploymentKind = "Deployment"
	replicaSetKind = "ReplicaSet"
)

// Surge is a workload with pods on a node that is replaced.
type Surge struct {
	Namespace string `json:"namespace"`
	Workload  string `json:"workload"`          // Deployment/web
	Pods      int    `json:"pods"`              // on the node, and so many more are brought up first
	Skipped   string `json:"skipped,omitempty"` // why they are not; they are evicted first
}

// surges decides for each workload whether it may be enlarged.
func (r *Runner) surges(ctx context.Context, works []*workload) error {
	scalers := make(map[string][]kube.Autoscaler) // by namespace
	for _, w := range works {
		w.top = w.owner
		why, err := r.forbids(ctx, w, scalers)
		switch {
		case kube.Code(err) == http.StatusForbidden:
			why = "these credentials may not read it or its autoscalers"
		case errors.Is(err, holdfast.ErrNotFound):
			why = "it is gone"
		case err != nil:
			return err
		}
		w.surge = Surge{Namespace: w.namespace, Workload: w.top.Kind + "/" + w.top.Name, Pods: len(w.here), Skipped: why}
	}
	return nil
}

// forbids sets the top of a workload, and returns why it must not be enlarged, or "".
func (r *Runner) forbids(ctx context.Context, w *workload, scalers map[string][]kube.Autoscaler) (why string, err error) {
	if w.owner.APIVersion != appsV1 || w.owner.Kind != replicaSetKind {
		return "only Deployments and ReplicaSets may have more pods for a while", nil
	}
	for _, p := range w.here {
		switch {
		case p.Meta.Annotations[SurgeAnnotation] == "never":
			return "its pods have the annotation " + SurgeAnnotation + ": never", nil
		case slices.ContainsFunc(p.Spec.Volumes, func(v kube.Volume) bool { return v.Claim != nil }):
			return "its pods have a volume claim, which two nodes may not share", nil
		}
	}
	set, err := r.workload(ctx, w.namespace, w.owner)
	if err != nil {
		return "", err
	}
	if o := set.Meta.Controlling(); o != nil {
		w.top = *o
		if o.APIVersion != appsV1 || o.Kind != deploymentKind {
			return "its number of pods belongs to a " + o.Kind, nil
		}
		d, err := r.workload(ctx, w.namespace, *o)
		switch s := d.Spec.Strategy; {
		case err != nil:
			return "", err
		case s.Type == "Recreate":
			return "its strategy Recreate forbids old and new pods at once", nil
		case s.Rolling.MaxSurge == float64(0) || s.Rolling.MaxSurge == "0%":
			return "its strategy forbids more pods (maxSurge 0)", nil
		case d.Status.Updated < d.Status.Replicas:
			return "a rollout is in progress", nil
		}
	}
	if _, ok := scalers[w.namespace]; !ok {
		err := r.drain.patiently(ctx, func() (err error) {
			scalers[w.namespace], err = r.client.AutoscalersIn(ctx, w.namespace)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	for _, s := range scalers[w.namespace] {
		if s.Spec.Target.Kind == w.top.Kind && s.Spec.Target.Name == w.top.Name {
			return "HorizontalPodAutoscaler " + s.Meta.Name + " would undo it", nil
		}
	}
	return "", nil
}

func (r *Runner) workload(ctx context.Context, namespace string, o kube.Owner) (w kube.Workload, err error) {
	err = r.drain.patiently(ctx, func() (err error) { w, _, err = r.client.Workload(ctx, namespace, o); return err })
	return w, err
}

// surge brings up as many more pods of each workload that allows it as it has on the
// node, and waits until they are ready elsewhere.
func (t *turn) surge(ctx context.Context) error {
	pods, err := t.pods(ctx)
	if err != nil {
		return err
	}
	if t.works, err = t.workloads(ctx, pods); err != nil {
		return err
	}
	if err := t.surges(ctx, t.works); err != nil {
		return err
	}
	var more []*workload
	for _, w := range t.works {
		if w.surge.Skipped == "" {
			if err := t.enlarge(ctx, w); err != nil {
				return fmt.Errorf("enlarging %s of %s: %w", w.surge.Workload, w.namespace, err)
			}
		}
		if t.rep.Surges = append(t.rep.Surges, w.surge); w.large > 0 {
			more = append(more, w)
		} else {
			t.tell(t.name, "%s %s/%s is evicted first: %s", w.top.Kind, w.namespace, w.top.Name, w.surge.Skipped)
		}
	}
	return t.ready(ctx, more, func(*workload, []kube.Pod) {})
}

// enlarge gives a workload as many more pods as it has on the node. If it must not,
// Skipped says why.
func (t *turn) enlarge(ctx context.Context, w *workload) error {
	from, to, why := 0, 0, ""
	err := t.drain.patiently(ctx, func() error {
		return t.client.EditWorkload(ctx, w.namespace, w.top, func(now kube.Workload) (*kube.Resize, error) {
			label := now.Meta.Labels[SurgeLabel]
			if label != "" && label == fmt.Sprintf("%s.%d.%d", t.id, from, to) {
				return nil, nil // the answer was lost
			}
			from = now.Replicas()
			to = from + len(w.here)
			switch {
			case label != "":
				why = "another run has enlarged it"
			case from == 0:
				why = "it is to have no pods"
			default:
				why = ""
				return &kube.Resize{Replicas: to, Label: SurgeLabel, Value: new(fmt.Sprintf("%s.%d.%d", t.id, from, to))}, nil
			}
			return nil, nil
		})
	})
	switch {
	case kube.Code(err) == http.StatusForbidden:
		why = "these credentials may not change it"
	case errors.Is(err, holdfast.ErrNotFound):
		why = "it is gone"
	case err != nil:
		return err
	}
	if w.surge.Skipped = why; why != "" {
		return nil
	}
	w.large = to
	w.ready = min(w.ready, from) // pods of an earlier surge may still be ending
	t.tell(t.name, "%s %s/%s has %d pods instead of %d", w.top.Kind, w.namespace, w.top.Name, to, from)
	return nil
}

// accepted takes one pod from an enlarged workload when one of its pods leaves the node.
// Budgets that count from the number of pods then allow the next eviction.
func (t *turn) accepted(ctx context.Context, pod kube.Meta) error {
	i := slices.IndexFunc(t.works, func(w *workload) bool {
		return slices.ContainsFunc(w.here, func(p kube.Pod) bool { return p.Meta.UID == pod.UID })
	})
	if i < 0 {
		return nil
	}
	w := t.works[i]
	w.resizing.Lock()
	defer w.resizing.Unlock()
	if w.large == 0 {
		return nil
	}
	err := t.seen(ctx, w)
	if err == nil {
		w.large, _, err = t.shrink(ctx, w.namespace, w.top, w.large-1)
	}
	return err
}

// seen waits until a workload's controller has replaced the evicted pods: so it knows
// that they end. A controller that learns of fewer pods before it learns of their
// eviction would delete ready ones besides. Those that replace them are not ready yet,
// and are deleted first.
func (t *turn) seen(ctx context.Context, w *workload) error {
	limited, cancel := context.WithTimeout(ctx, seenLimit)
	defer cancel()
	for {
		pods, err := t.podsIn(limited, w.namespace)
		active := 0
		for _, p := range pods {
			if o := p.Meta.Controlling(); o != nil && o.UID == w.owner.UID && p.Meta.Deleted == nil && !p.Finished() {
				active++
			}
		}
		if err == nil && active >= w.large {
			return nil
		}
		if err == nil {
			err = kube.Sleep(limited, cmp.Or(t.conf.Look, seenEvery))
		}
		if err != nil && ctx.Err() == nil && limited.Err() != nil {
			return nil // a quota may forbid new pods; the controller has seen the eviction by now
		}
		if err != nil {
			return err
		}
	}
}

// scaleBack scales back the workloads that are still enlarged.
func (t *turn) scaleBack(ctx context.Context) error {
	var errs []error
	for _, w := range t.works {
		if w.large > 0 {
			w.large = 0
			_, _, err := t.shrink(ctx, w.namespace, w.top, 0)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// shrink takes pods from an enlarged workload, down to least or to the number that it
// had before, unless another component has changed the number since. It returns how
// many it has while it is still enlarged, otherwise 0, and whether it was scaled back.
func (x *run) shrink(ctx context.Context, namespace string, o kube.Owner, least int) (large int, back bool, err error) {
	what := ""
	err = x.drain.patiently(ctx, func() error {
		return x.client.EditWorkload(ctx, namespace, o, func(now kube.Workload) (*kube.Resize, error) {
			large = 0
			label, ok := now.Meta.Labels[SurgeLabel]
			if !ok {
				return nil, nil // the answer was lost, or another process was faster
			}
			run, counts, _ := strings.Cut(label, ".")
			from, to := 0, 0
			_, err := fmt.Sscanf(counts, "%d.%d", &from, &to)
			r := &kube.Resize{Replicas: now.Replicas(), Label: SurgeLabel}
			if back = err == nil && from > 0 && from < to && r.Replicas == to; !back {
				what = fmt.Sprintf("keeps %d pods, as another component has set it", r.Replicas)
				return r, nil
			}
			what = fmt.Sprintf("has %d pods again", from)
			if r.Replicas = max(from, min(to, least)); r.Replicas > from {
				large, back, what = r.Replicas, false, ""
				r.Value = new(fmt.Sprintf("%s.%d.%d", run, from, large))
			}
			return r, nil
		})
	})
	if errors.Is(err, holdfast.ErrNotFound) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, holdfast.WithHint(fmt.Errorf("scaling back %s %s/%s: %w", o.Kind, namespace, o.Name, err), "--abandon scales it back")
	}
	if what != "" {
		x.tell("", "%s %s/%s %s", o.Kind, namespace, o.Name, what)
	}
	return large, back, nil
}

// settle scales back all workloads that a run has enlarged, and returns their names.
func (x *run) settle(ctx context.Context) (names []string, err error) {
	var errs []error
	for _, kind := range []string{deploymentKind, replicaSetKind} {
		var list []kube.Workload
		err := x.drain.patiently(ctx, func() (err error) { list, err = x.client.Workloads(ctx, kind, SurgeLabel); return err })
		if kube.Code(err) == http.StatusForbidden {
			continue // these credentials have enlarged none
		}
		errs = append(errs, err)
		for _, w := range list {
			_, undone, err := x.shrink(ctx, w.Meta.Namespace, kube.Owner{APIVersion: appsV1, Kind: kind, Name: w.Meta.Name, UID: w.Meta.UID}, 0)
			if errs = append(errs, err); undone {
				names = append(names, kind+" "+w.Meta.Namespace+"/"+w.Meta.Name)
			}
		}
	}
	return names, errors.Join(errs...)
}
