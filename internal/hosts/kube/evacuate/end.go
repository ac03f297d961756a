package evacuate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast"
	"holdfast/internal/hosts/kube"
)

// How a pod ended.
const (
	Ended      = "ended"       // by itself after its deletion, within its own grace period
	ShortGrace = "short_grace" // the same with a shorter grace period
	Overrode   = "overrode"    // against its disruption budget
	Killed     = "killed"
	Left       = "left" // not stopped
)

// beside limits the concurrent deletions of pods.
const beside = 8

// defaultGrace is the grace period of a pod that specifies none.
const defaultGrace = 30 * time.Second

// run is one evacuation.
type run struct {
	e   *Evacuator
	end time.Time // when the remaining pods are killed

	mu    sync.Mutex
	asked map[string]bool   // uids of pods that are terminating
	told  map[string]bool   // uids of pods with an event written
	how   map[string]string // by uid: ShortGrace or Overrode
	count map[string]int
}

// askAll deletes all pods in the order of their grace and waits for them until it
// is time to kill. It returns the remaining pods.
func (r *run) askAll(ctx context.Context) (left []kube.Pod) {
	ctx, cancel := context.WithDeadline(ctx, r.end)
	defer cancel()
	r.how = map[string]string{}
	seen := map[string]bool{}
	for {
		var pods []kube.Pod
		err := once(ctx, func(ctx context.Context) (err error) {
			pods, err = r.e.client.PodsOn(ctx, r.e.conf.Node)
			return err
		})
		if err == nil {
			left = slices.DeleteFunc(pods, func(p kube.Pod) bool { return !goes(p) })
			for _, p := range left {
				seen[p.Meta.UID] = true
			}
		}
		if ctx.Err() == nil && err != nil {
			r.e.log.Error("kubernetes: listing the pods of this leaving node failed; trying again", "err", err)
		}
		if err == nil && len(left) == 0 || ctx.Err() != nil {
			break
		}
		if !kube.Transient(err) { // otherwise it would succeed later
			r.round(ctx, left)
		}
		if pause(ctx, 1, err) != nil {
			break
		}
	}
	for _, p := range left {
		delete(seen, p.Meta.UID)
	}
	r.count = map[string]int{}
	for uid := range seen { // the pods that have ended
		r.count[cmp.Or(r.how[uid], Ended)]++
	}
	return left
}

// goes reports whether a pod must be ended before the node leaves.
func goes(p kube.Pod) bool { return !p.Mirror() && !p.OfDaemonSet() && !p.Finished() }

// grace returns the pod's own grace period.
func grace(p kube.Pod) time.Duration {
	if p.Spec.Grace == nil {
		return defaultGrace
	}
	return time.Duration(max(*p.Spec.Grace, 0)) * time.Second
}

// inOrder sorts pods by grace period, longest first.
func inOrder(pods []kube.Pod) []kube.Pod {
	sorted := slices.Clone(pods)
	sort.SliceStable(sorted, func(i, j int) bool {
		a, b := sorted[i], sorted[j]
		return cmp.Or(cmp.Compare(grace(b), grace(a)), cmp.Compare(a.Meta.Namespace, b.Meta.Namespace), cmp.Compare(a.Meta.Name, b.Meta.Name)) < 0
	})
	return sorted
}

// round deletes the pods that are not yet terminating, longest grace first.
func (r *run) round(ctx context.Context, pods []kube.Pod) {
	pods = inOrder(pods)
	budgets := r.budgets(ctx, pods)
	now := time.Now()
	var deleting errgroup.Group
	deleting.SetLimit(beside)
	for _, p := range pods {
		if p.Meta.Deleted != nil {
			r.mu.Lock()
			r.asked[p.Meta.UID] = true
			r.mu.Unlock()
			if !p.Meta.Deleted.After(r.end) {
				continue // it ends in time
			}
		}
		want, there := grace(p), r.end.Sub(now)
		how := ""
		switch {
		case p.Meta.Deleted != nil, want > there:
			how = ShortGrace
		case !budgets.take(p):
			if now.Add(want + 2*roundsOf).Before(r.end) {
				continue // its grace period still fits after a wait
			}
			how = Overrode
		}
		seconds := max(int(min(want, there).Seconds()), 1) // not 0, which means without any grace
		deleting.Go(func() error {
			r.delete(ctx, p, seconds, how)
			return nil
		})
	}
	_ = deleting.Wait() // the functions return no errors
}

// delete deletes one pod. A failure is tried again in the next round.
func (r *run) delete(ctx context.Context, p kube.Pod, seconds int, how string) {
	err := once(ctx, func(ctx context.Context) error { return r.e.client.DeletePod(ctx, p.Meta, seconds) })
	switch code := kube.Code(err); {
	case err == nil:
	case code == http.StatusNotFound, code == http.StatusConflict: // the pod is gone, or its name belongs to another pod
		return
	default:
		if ctx.Err() == nil {
			r.e.log.Warn("kubernetes: deleting a pod of this leaving node failed", "pod", p.Meta.Namespace+"/"+p.Meta.Name, "err", err)
		}
		return
	}
	r.mu.Lock()
	r.asked[p.Meta.UID] = true
	first := how != "" && !r.told[p.Meta.UID]
	if how != "" {
		r.how[p.Meta.UID], r.told[p.Meta.UID] = how, true
	}
	r.mu.Unlock()
	if !first {
		return
	}
	text := fmt.Sprintf("its node is leaving: it has %d s to end, of its grace period of %.0f s", seconds, grace(p).Seconds())
	reason := "HoldfastGraceShortened"
	if how == Overrode {
		reason, text = "HoldfastBudgetOverridden", fmt.Sprintf("its node is leaving at the end of the notice: it is ended against its disruption budget, with a grace period of %d s", seconds)
	}
	r.e.log.Warn("kubernetes: "+text, "pod", p.Meta.Namespace+"/"+p.Meta.Name)
	r.e.event(ctx, kube.Reference{APIVersion: "v1", Kind: "Pod", Namespace: p.Meta.Namespace, Name: p.Meta.Name, UID: p.Meta.UID}, reason, text)
}

// budgets are the disruption budgets with the disruptions still allowed.
type budgets struct{ list []kube.Budget }

// budgets reads the disruption budgets of the pods' namespaces. If they cannot be
// read, no disruption is allowed until no time is left to wait.
func (r *run) budgets(ctx context.Context, pods []kube.Pod) *budgets {
	names := map[string]bool{}
	for _, p := range pods {
		if p.Meta.Deleted == nil {
			names[p.Meta.Namespace] = true
		}
	}
	b := &budgets{}
	for _, ns := range slices.Sorted(maps.Keys(names)) {
		var list []kube.Budget
		err := once(ctx, func(ctx context.Context) (err error) {
			list, err = r.e.client.BudgetsIn(ctx, ns)
			return err
		})
		if err != nil {
			if ctx.Err() == nil {
				r.e.log.Warn("kubernetes: disruption budgets cannot be read: pods wait for them as long as there is time", "namespace", ns, "err", err)
			}
			list = []kube.Budget{{Meta: kube.Meta{Namespace: ns}}}
			list[0].Spec.Selector = &kube.LabelSelector{} // matches all pods
		}
		b.list = append(b.list, list...)
	}
	return b
}

// take reports whether all budgets of a pod allow its end and, if so, counts the
// disruption. A pod that is not ready does not count if the other pods satisfy
// the budget.
func (b *budgets) take(p kube.Pod) bool {
	var of []*kube.Budget
	for i := range b.list {
		x := &b.list[i]
		if x.Meta.Namespace != p.Meta.Namespace || !x.Spec.Selector.Chooses(p.Meta.Labels) {
			continue
		}
		if !p.Ready() && x.Status.Healthy >= x.Status.Desired && x.Status.Desired > 0 {
			continue
		}
		if x.Status.Allowed <= 0 {
			return false
		}
		of = append(of, x)
	}
	for _, x := range of {
		x.Status.Allowed--
	}
	return true
}

// kill kills the deleted pods that still run, and removes them from the API
// server.
func (r *run) kill(ctx context.Context, left []kube.Pod, last time.Time) {
	ctx, cancel := context.WithDeadline(ctx, last)
	defer cancel()
	pods := map[string]kube.Pod{}
	var uids []string
	for _, p := range left {
		if !r.asked[p.Meta.UID] {
			r.count[Left]++ // it was never deleted: the kubelet would start it again
			continue
		}
		pods[p.Meta.UID] = p
		uids = append(uids, p.Meta.UID)
	}
	if len(uids) == 0 {
		return
	}
	killing, stop := context.WithTimeout(ctx, margin/2)
	dead, err := r.e.killer.Kill(killing, uids)
	stop()
	if err != nil {
		r.e.log.Error("kubernetes: killing the remaining pods of this leaving node failed", "err", err)
	}
	var deleting errgroup.Group
	deleting.SetLimit(beside)
	for _, uid := range dead {
		p := pods[uid]
		deleting.Go(func() error {
			err := patiently(ctx, func(ctx context.Context) error { return r.takeOff(ctx, p.Meta) })
			if err != nil && !errors.Is(err, holdfast.ErrNotFound) {
				r.e.log.Warn("kubernetes: removing a dead pod from the API server failed", "pod", p.Meta.Namespace+"/"+p.Meta.Name, "err", err)
			}
			return nil
		})
	}
	_ = deleting.Wait() // the functions return no errors
	r.count[Killed] += len(dead)
	r.count[Left] += len(uids) - len(dead)
}

// takeOff removes a dead pod from the API server. A missing pod is not an error.
func (r *run) takeOff(ctx context.Context, pod kube.Meta) error {
	err := r.e.client.DeletePod(ctx, pod, 0)
	if kube.Code(err) != http.StatusConflict {
		return err
	}
	pods, listing := r.e.client.PodsOn(ctx, r.e.conf.Node) // the agent may not be allowed to get a single pod
	if listing == nil && !slices.ContainsFunc(pods, func(p kube.Pod) bool { return p.Meta.UID == pod.UID }) {
		return nil // the name belongs to another pod
	}
	return err
}

// report logs and counts how the pods ended.
func (r *run) report(begun time.Time) {
	for how, n := range r.count {
		r.e.m.pods.WithLabelValues(how).Add(float64(n))
	}
	r.e.log.Warn("kubernetes: "+r.words(), "took", time.Since(begun).Round(time.Millisecond))
}

func (r *run) words() string {
	var parts []string
	for _, how := range []string{Ended, ShortGrace, Overrode, Killed, Left} {
		if n := r.count[how]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, map[string]string{
				Ended: "ended with their grace", ShortGrace: "had less than their grace", Overrode: "ended against a disruption budget", Killed: "were killed", Left: "are left",
			}[how]))
		}
	}
	if len(parts) == 0 {
		return "no pod was on this leaving node"
	}
	return "pods of this leaving node: " + strings.Join(parts, ", ")
}
