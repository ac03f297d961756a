package kubetest

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/hosts/kube"
)

// Object is any object.
type Object = map[string]any

// Node creates a ready node.
func (s *Server) Node(t testing.TB, name string, labels map[string]string) {
	t.Helper()
	s.Must(t, http.MethodPost, "/api/v1/nodes", Object{"metadata": Object{"name": name, "labels": labels}}, nil)
	s.Must(t, http.MethodPatch, "/api/v1/nodes/"+name, Object{"spec": Object{"taints": nil}}, nil) // a new node has the taint not-ready
	s.SetReady(t, name, true)
}

// SetReady makes a node ready, or not.
func (s *Server) SetReady(t testing.TB, name string, ready bool) {
	t.Helper()
	status := "True"
	if !ready {
		status = "False"
	}
	s.Must(t, http.MethodPatch, "/api/v1/nodes/"+name+"/status", Object{"status": Object{
		"conditions": []Object{{"type": "Ready", "status": status, "reason": "Test", "message": "as the test wants it", "lastHeartbeatTime": now(), "lastTransitionTime": now()}},
		"nodeInfo": Object{"kernelVersion": "6.1.0-test", "containerRuntimeVersion": "containerd://1.6.20", "kubeletVersion": "v1.37.2", "osImage": "test",
			"architecture": "amd64", "bootID": "", "machineID": "", "systemUUID": "", "kubeProxyVersion": "", "operatingSystem": "linux"},
	}}, nil)
}

func now() string { return time.Now().UTC().Format(time.RFC3339) }

// PodSpec returns a spec with a container that never runs.
func PodSpec() Object {
	return Object{"containers": []Object{{"name": "main", "image": "none"}}, "terminationGracePeriodSeconds": 1}
}

// ReplicaSet creates a ReplicaSet with that number of replicas, and returns its uid.
func (s *Server) ReplicaSet(t testing.TB, namespace, name string, replicas int, spec Object) string {
	t.Helper()
	labels := Object{"app": name}
	var made kube.Pod // for the fields that all objects have
	s.Must(t, http.MethodPost, "/apis/apps/v1/namespaces/"+namespace+"/replicasets", Object{
		"metadata": Object{"name": name},
		"spec":     Object{"replicas": replicas, "selector": Object{"matchLabels": labels}, "template": Object{"metadata": Object{"labels": labels}, "spec": spec}},
	}, &made)
	return made.Meta.UID
}

// Budget creates a disruption budget for a ReplicaSet's pods.
func (s *Server) Budget(t testing.TB, namespace, name, app string, least int) {
	t.Helper()
	s.Must(t, http.MethodPost, "/apis/policy/v1/namespaces/"+namespace+"/poddisruptionbudgets", Object{
		"metadata": Object{"name": name}, "spec": Object{"minAvailable": least, "selector": Object{"matchLabels": Object{"app": app}}},
	}, nil)
}

// Hands do the work of controllers, scheduler and kubelets. They create the pods of
// ReplicaSets, place pods on schedulable nodes, make them ready, end deleted pods, and
// compute the status of budgets.
type Hands struct {
	s    *Server
	stop context.CancelFunc
	done chan struct{}

	mu     sync.Mutex
	placed map[string][]string // nodes of the pods of a ReplicaSet, by its name
	hold   bool                // no pod becomes ready
	serial int
	errs   []error
}

// Hands starts the Hands of a server, until the test ends.
func (s *Server) Hands(t testing.TB) *Hands {
	ctx, stop := context.WithCancel(context.Background())
	h := &Hands{s: s, stop: stop, done: make(chan struct{}), placed: make(map[string][]string)}
	go func() {
		defer close(h.done)
		for ctx.Err() == nil {
			if err := h.round(ctx); err != nil && ctx.Err() == nil && !kube.Transient(err) {
				h.mu.Lock()
				h.errs = append(h.errs, err)
				h.mu.Unlock()
			}
			_ = kube.Sleep(ctx, 50*time.Millisecond)
		}
	}()
	t.Cleanup(func() {
		stop()
		<-h.done
		for _, err := range h.errs {
			t.Error("hands:", err)
		}
	})
	return h
}

// Placed returns the nodes on which a ReplicaSet's pods were placed, in order.
func (h *Hands) Placed(name string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.placed[name])
}

// Hold keeps new pods from becoming ready.
func (h *Hands) Hold(on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hold = on
}

// state is the state of the cluster at one moment.
type state struct {
	pods  []kube.Pod
	nodes []kube.Node
	sets  []replicaSet
}

type replicaSet struct {
	Meta kube.Meta `json:"metadata"`
	Spec struct {
		Replicas int `json:"replicas"`
		Template struct {
			Spec Object `json:"spec"`
		} `json:"template"`
	} `json:"spec"`
}

type listOf[T any] struct {
	Items []T `json:"items"`
}

func items[T any](ctx context.Context, s *Server, path string) ([]T, error) {
	var l listOf[T]
	return l.Items, s.Do(ctx, http.MethodGet, path, nil, &l)
}

func (h *Hands) round(ctx context.Context) (err error) {
	var x state
	if x.pods, err = items[kube.Pod](ctx, h.s, "/api/v1/pods"); err != nil {
		return err
	}
	if x.nodes, err = items[kube.Node](ctx, h.s, "/api/v1/nodes"); err != nil {
		return err
	}
	if x.sets, err = items[replicaSet](ctx, h.s, "/apis/apps/v1/replicasets"); err != nil {
		return err
	}
	for _, p := range x.pods {
		if err := h.kubelet(ctx, p); err != nil {
			return err
		}
	}
	if err := h.schedule(ctx, x); err != nil {
		return err
	}
	for _, set := range x.sets {
		if err := h.fill(ctx, set, x.pods); err != nil {
			return err
		}
	}
	return h.budgets(ctx, x.pods)
}

func podPath(p kube.Pod) string {
	return "/api/v1/namespaces/" + p.Meta.Namespace + "/pods/" + p.Meta.Name
}

// gone returns nil for the error about a missing object.
func gone(err error) error {
	if c := kube.Code(err); c == http.StatusNotFound || c == http.StatusConflict {
		return nil
	}
	return err
}

// kubelet ends deleted pods, and makes the pods on nodes ready.
func (h *Hands) kubelet(ctx context.Context, p kube.Pod) error {
	h.mu.Lock()
	hold := h.hold
	h.mu.Unlock()
	switch {
	case p.Meta.Deleted != nil:
		return gone(h.s.Do(ctx, http.MethodDelete, podPath(p), Object{"gracePeriodSeconds": 0, "preconditions": Object{"uid": p.Meta.UID}}, nil))
	case p.Spec.Node == "" || p.Status.Phase != "Pending" || hold:
		return nil
	}
	began := time.Now().UTC().Add(-5 * time.Second)
	at := func(s int) string { return began.Add(time.Duration(s) * time.Second).Format(time.RFC3339) }
	return gone(h.s.Do(ctx, http.MethodPatch, podPath(p)+"/status", Object{"status": Object{
		"phase": "Running", "startTime": at(0),
		"conditions": []Object{{"type": "Ready", "status": "True", "lastTransitionTime": at(5)}},
		"initContainerStatuses": []Object{{"name": "init", "image": "none", "imageID": "", "ready": true, "restartCount": 0,
			"state": Object{"terminated": Object{"exitCode": 0, "startedAt": at(0), "finishedAt": at(2)}}}},
		"containerStatuses": []Object{{"name": "main", "image": "none", "imageID": "", "ready": true, "restartCount": 0, "state": Object{"running": Object{"startedAt": at(2)}}}},
	}}, nil))
}

// schedule places pods on the nodes with the fewest pods.
func (h *Hands) schedule(ctx context.Context, x state) error {
	load := make(map[string]int)
	for _, n := range x.nodes {
		if n.Ready() && !n.Spec.Unschedulable {
			load[n.Meta.Name] = 0
		}
	}
	for _, p := range x.pods {
		if _, ok := load[p.Spec.Node]; ok {
			load[p.Spec.Node]++
		}
	}
	for _, p := range x.pods {
		if p.Spec.Node != "" || p.Meta.Deleted != nil || len(load) == 0 {
			continue
		}
		names := slices.Sorted(maps.Keys(load))
		best := slices.MinFunc(names, func(a, b string) int { return load[a] - load[b] })
		err := h.s.Do(ctx, http.MethodPost, podPath(p)+"/binding", Object{"metadata": Object{"name": p.Meta.Name}, "target": Object{"kind": "Node", "name": best}}, nil)
		if gone(err) != nil {
			return err
		}
		load[best]++
		if o := p.Meta.Controlling(); o != nil && err == nil {
			h.mu.Lock()
			h.placed[o.Name] = append(h.placed[o.Name], best)
			h.mu.Unlock()
		}
	}
	return nil
}

// fill creates the missing pods of a ReplicaSet, or deletes those that are too many: pods
// that are not ready first, then the newest.
func (h *Hands) fill(ctx context.Context, set replicaSet, pods []kube.Pod) error {
	mine := slices.DeleteFunc(slices.Clone(pods), func(p kube.Pod) bool {
		o := p.Meta.Controlling()
		return o == nil || o.UID != set.Meta.UID || p.Meta.Deleted != nil || p.Finished()
	})
	slices.SortStableFunc(mine, func(a, b kube.Pod) int {
		if a.Ready() != b.Ready() && a.Ready() {
			return -1
		} else if a.Ready() != b.Ready() {
			return 1
		}
		return a.Meta.Created.Compare(b.Meta.Created)
	})
	for _, p := range mine[min(len(mine), set.Spec.Replicas):] {
		if err := gone(h.s.Do(ctx, http.MethodDelete, podPath(p), nil, nil)); err != nil {
			return err
		}
	}
	for have := len(mine); have < set.Spec.Replicas; have++ {
		h.mu.Lock()
		h.serial++
		name := fmt.Sprintf("%s-%d", set.Meta.Name, h.serial)
		h.mu.Unlock()
		err := h.s.Do(ctx, http.MethodPost, "/api/v1/namespaces/"+set.Meta.Namespace+"/pods", Object{
			"metadata": Object{"name": name, "labels": Object{"app": set.Meta.Name},
				"ownerReferences": []Object{{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": set.Meta.Name, "uid": set.Meta.UID, "controller": true}}},
			"spec": set.Spec.Template.Spec,
		}, nil)
		if err != nil {
			return err
		}
	}
	return nil
}

type budget struct {
	Meta kube.Meta `json:"metadata"`
	Spec struct {
		Least    int                 `json:"minAvailable"`
		Selector *kube.LabelSelector `json:"selector"`
	} `json:"spec"`
	Status struct {
		Allowed  int   `json:"disruptionsAllowed"`
		Healthy  int   `json:"currentHealthy"`
		Desired  int   `json:"desiredHealthy"`
		Expected int   `json:"expectedPods"`
		Seen     int64 `json:"observedGeneration"`
	} `json:"status"`
}

// budgets computes how many evictions each budget allows.
func (h *Hands) budgets(ctx context.Context, pods []kube.Pod) error {
	all, err := items[budget](ctx, h.s, "/apis/policy/v1/poddisruptionbudgets")
	if err != nil {
		return err
	}
	for _, b := range all {
		healthy, expected := 0, 0
		for _, p := range pods {
			if p.Meta.Namespace == b.Meta.Namespace && b.Spec.Selector.Chooses(p.Meta.Labels) && p.Meta.Deleted == nil {
				expected++
				if p.Ready() {
					healthy++
				}
			}
		}
		now := b.Status
		now.Healthy, now.Expected, now.Desired, now.Allowed, now.Seen = healthy, expected, b.Spec.Least, max(0, healthy-b.Spec.Least), 1
		if now == b.Status {
			continue
		}
		path := "/apis/policy/v1/namespaces/" + b.Meta.Namespace + "/poddisruptionbudgets/" + b.Meta.Name + "/status"
		if err := h.s.Do(ctx, http.MethodPatch, path, Object{"metadata": Object{"resourceVersion": b.Meta.ResourceVersion}, "status": now}, nil); gone(err) != nil {
			return err
		}
	}
	return nil
}

// Await waits until a condition is true.
func Await(t testing.TB, what string, so func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !so() {
		if time.Now().After(deadline) {
			t.Fatalf("not so after a minute: %s", what)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// ReadyPods counts the ready pods of a ReplicaSet, by node.
func (s *Server) ReadyPods(t testing.TB, namespace, name string) map[string]int {
	t.Helper()
	pods, err := s.Client().PodsIn(t.Context(), namespace)
	if err != nil {
		t.Fatal(err)
	}
	on := make(map[string]int)
	for _, p := range pods {
		if strings.HasPrefix(p.Meta.Name, name+"-") && p.Ready() {
			on[p.Spec.Node]++
		}
	}
	return on
}
