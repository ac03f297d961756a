package replace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"sync"

	"holdfast"
	"holdfast/internal/hosts/kube"
)

// jobKind is the kind of owners with pods that end by themselves: their readiness
// is not awaited.
const jobKind = "Job"

// workload is an owner of pods on a drained node.
type workload struct {
	namespace string
	owner     kube.Owner
	ready     int             // of its pods in the cluster, before
	known     map[string]bool // their uids, before
	here      []kube.Pod      // those that are evicted

	top   kube.Owner // of which the number of pods decides: the Deployment, or owner
	surge Surge

	resizing sync.Mutex
	large    int // how many pods it has while it is enlarged; 0: it is not
}

// owned returns the owners of the pods that come up elsewhere.
func owned(pods []kube.Pod) (list []*workload) {
	by := make(map[string]*workload)
	for _, p := range pods {
		o := p.Meta.Controlling()
		if o == nil || o.Kind == jobKind || p.Finished() {
			continue
		}
		w := by[o.UID]
		if w == nil {
			w = &workload{namespace: p.Meta.Namespace, owner: *o, known: make(map[string]bool)}
			by[o.UID] = w
			list = append(list, w)
		}
		w.here = append(w.here, p)
	}
	return list
}

// workloads returns the owners of the pods, with the number of ready pods of
// each.
func (x *run) workloads(ctx context.Context, pods []kube.Pod) ([]*workload, error) {
	list := owned(pods)
	by := make(map[string]*workload)
	for _, w := range list {
		by[w.owner.UID] = w
	}
	asked := make(map[string]bool)
	for _, w := range list {
		if asked[w.namespace] {
			continue
		}
		asked[w.namespace] = true
		in, err := x.podsIn(ctx, w.namespace)
		if err != nil {
			return nil, err
		}
		for _, p := range in {
			o := p.Meta.Controlling()
			if o == nil || by[o.UID] == nil {
				continue
			}
			by[o.UID].known[p.Meta.UID] = true
			if p.Ready() {
				by[o.UID].ready++
			}
		}
	}
	return list, nil
}

func (x *run) podsIn(ctx context.Context, namespace string) (pods []kube.Pod, err error) {
	err = x.drain.patiently(ctx, func() (err error) { pods, err = x.client.PodsIn(ctx, namespace); return err })
	return pods, err
}

// elsewhere waits until as many pods of a workload are ready on other nodes as
// before, or as many as it now wants. It returns them.
func (x *run) elsewhere(ctx context.Context, node string, w *workload) ([]kube.Pod, error) {
	pause := cmp.Or(x.conf.Look, readyEvery)
	said := false
	for {
		need, err := x.need(ctx, w)
		if err != nil {
			return nil, err
		}
		pods, err := x.podsIn(ctx, w.namespace)
		if err != nil {
			return nil, err
		}
		mine := slices.DeleteFunc(pods, func(p kube.Pod) bool {
			o := p.Meta.Controlling()
			return o == nil || o.UID != w.owner.UID || p.Spec.Node == node || !p.Ready()
		})
		if len(mine) >= need {
			return mine, nil
		}
		if !said {
			said = true
			x.tell(node, "waiting for %s %s/%s: %d of %d pods are ready", w.owner.Kind, w.namespace, w.owner.Name, len(mine), need)
		}
		if err := kube.Sleep(ctx, pause); err != nil {
			return mine, fmt.Errorf("%d of %d are: %w", len(mine), need, err)
		}
		pause = min(pause*5/4, max(readySeldom, x.conf.Look))
	}
}

// need returns how many pods of a workload must be ready.
func (x *run) need(ctx context.Context, w *workload) (int, error) {
	var now kube.Workload
	known := false
	err := x.drain.patiently(ctx, func() (err error) { now, known, err = x.client.Workload(ctx, w.namespace, w.owner); return err })
	switch {
	case errors.Is(err, holdfast.ErrNotFound):
		return 0, nil
	case err != nil:
		return 0, err
	case known:
		return min(w.ready, now.Replicas()), nil
	}
	return w.ready, nil
}

// rows pairs each evicted pod with its replacement: the pod with its name,
// otherwise the first new pod.
func (x *run) rows(node string, w *workload, ready []kube.Pod) []PodReport {
	x.mu.Lock()
	defer x.mu.Unlock()
	fresh := slices.DeleteFunc(slices.Clone(ready), func(p kube.Pod) bool { return w.known[p.Meta.UID] || x.taken[p.Meta.UID] })
	sort.SliceStable(fresh, func(i, j int) bool { return fresh[i].Meta.Created.Before(fresh[j].Meta.Created) })
	rows := make([]PodReport, len(w.here))
	take := func(i int, fits func(kube.Pod) bool) {
		at := slices.IndexFunc(fresh, fits)
		if at < 0 || rows[i].New != nil {
			return
		}
		p := fresh[at]
		fresh = slices.Delete(fresh, at, at+1)
		x.taken[p.Meta.UID] = true
		rows[i].New = &Place{Pod: p.Meta.Name, Node: p.Spec.Node, Times: TimesOf(p)}
	}
	for i, p := range w.here {
		rows[i] = PodReport{Namespace: w.namespace, Workload: w.owner.Kind + "/" + w.owner.Name, Old: Place{Pod: p.Meta.Name, Node: node, Times: TimesOf(p)}}
		take(i, func(q kube.Pod) bool { return q.Meta.Name == p.Meta.Name })
	}
	for i := range w.here {
		take(i, func(kube.Pod) bool { return true })
	}
	return rows
}
