package kube

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"holdfast"
)

func nodePath(name string) string { return "/api/v1/nodes/" + url.PathEscape(name) }

func podPath(namespace, name string) string {
	return "/api/v1/namespaces/" + url.PathEscape(namespace) + "/pods/" + url.PathEscape(name)
}

// Nodes lists the nodes that a label selector chooses; "" chooses all.
func (c *Client) Nodes(ctx context.Context, selector string) ([]Node, error) {
	q := url.Values{}
	if selector != "" {
		q.Set("labelSelector", selector)
	}
	return list[Node](ctx, c, "/api/v1/nodes", q)
}

// Node reads one node.
func (c *Client) Node(ctx context.Context, name string) (Node, error) {
	var n Node
	return n, c.get(ctx, nodePath(name), &n)
}

// SeenNode reads one node from the API server's cache: it may be slightly stale,
// and does not load etcd.
func (c *Client) SeenNode(ctx context.Context, name string) (Node, error) {
	var n Node
	r := request{verb: "get", method: http.MethodGet, path: nodePath(name), query: url.Values{"resourceVersion": {"0"}}}
	return n, c.call(ctx, r, &n)
}

// PodsOn lists the pods of one node.
func (c *Client) PodsOn(ctx context.Context, node string) ([]Pod, error) {
	return list[Pod](ctx, c, "/api/v1/pods", url.Values{"fieldSelector": {"spec.nodeName=" + node}})
}

// PodsIn lists the pods of one namespace.
func (c *Client) PodsIn(ctx context.Context, namespace string) ([]Pod, error) {
	return list[Pod](ctx, c, "/api/v1/namespaces/"+url.PathEscape(namespace)+"/pods", nil)
}

// Pod reads one pod.
func (c *Client) Pod(ctx context.Context, namespace, name string) (Pod, error) {
	var p Pod
	return p, c.get(ctx, podPath(namespace, name), &p)
}

// Budgets lists all disruption budgets.
func (c *Client) Budgets(ctx context.Context) ([]Budget, error) {
	return list[Budget](ctx, c, "/apis/policy/v1/poddisruptionbudgets", nil)
}

// BudgetsIn lists the disruption budgets of one namespace.
func (c *Client) BudgetsIn(ctx context.Context, namespace string) ([]Budget, error) {
	return list[Budget](ctx, c, "/apis/policy/v1/namespaces/"+url.PathEscape(namespace)+"/poddisruptionbudgets", nil)
}

// DaemonSet returns an error if the DaemonSet does not exist.
func (c *Client) DaemonSet(ctx context.Context, namespace, name string) error {
	return c.get(ctx, "/apis/apps/v1/namespaces/"+url.PathEscape(namespace)+"/daemonsets/"+url.PathEscape(name), nil)
}

// workloadPaths returns the path of all workloads of a kind in a namespace, "" for
// all namespaces. It returns "" for a kind without a number of replicas.
func workloadPaths(namespace, apiVersion, kind string) string {
	plural := map[string]string{
		appsV1 + " Deployment": "/deployments", appsV1 + " ReplicaSet": "/replicasets", appsV1 + " StatefulSet": "/statefulsets",
		"v1 ReplicationController": "/replicationcontrollers",
	}[apiVersion+" "+kind]
	in := "/apis/" + apiVersion
	if apiVersion == "v1" {
		in = "/api/v1"
	}
	switch {
	case plural == "":
		return ""
	case namespace != "":
		in += "/namespaces/" + url.PathEscape(namespace)
	}
	return in + plural
}

// Workload reads an owner of pods; known is false for kinds without a number of
// replicas. If the owner is gone, the error wraps holdfast.ErrNotFound.
func (c *Client) Workload(ctx context.Context, namespace string, o Owner) (w Workload, known bool, err error) {
	path := workloadPaths(namespace, o.APIVersion, o.Kind)
	if path == "" {
		return w, false, nil
	}
	if err := c.get(ctx, path+"/"+url.PathEscape(o.Name), &w); err != nil {
		return w, true, err
	}
	if w.Meta.UID != o.UID {
		err = fmt.Errorf("%s %s was replaced by another of the same name: %w", o.Kind, o.Name, holdfast.ErrNotFound)
	}
	return w, true, err
}

// Workloads lists the Deployments or ReplicaSets, by kind, of all namespaces that a
// label selector chooses.
func (c *Client) Workloads(ctx context.Context, kind, selector string) ([]Workload, error) {
	return list[Workload](ctx, c, workloadPaths("", appsV1, kind), url.Values{"labelSelector": {selector}})
}

// Resize is a change of a workload: its number of pods and a label of its own, not
// of its pods. They change together.
type Resize struct {
	Replicas int
	Label    string
	Value    *string // nil removes the label
}

// EditWorkload changes a workload with optimistic concurrency, as EditNode does a
// node. Its kind has to be one that Workload knows.
func (c *Client) EditWorkload(ctx context.Context, namespace string, o Owner, change func(Workload) (*Resize, error)) error {
	return edit(ctx, func() (func() error, error) {
		w, _, err := c.Workload(ctx, namespace, o)
		if err != nil {
			return nil, err
		}
		r, err := change(w)
		if r == nil || err != nil {
			return nil, err
		}
		body := map[string]any{
			"metadata": map[string]any{"resourceVersion": w.Meta.ResourceVersion, "labels": map[string]*string{r.Label: r.Value}},
			"spec":     map[string]any{"replicas": r.Replicas},
		}
		path := workloadPaths(namespace, o.APIVersion, o.Kind) + "/" + url.PathEscape(o.Name)
		return func() error {
			return c.call(ctx, request{verb: "patch", method: http.MethodPatch, path: path, kind: mergePatch, body: body}, nil)
		}, nil
	})
}

// AutoscalersIn lists the HorizontalPodAutoscalers of one namespace.
func (c *Client) AutoscalersIn(ctx context.Context, namespace string) ([]Autoscaler, error) {
	return list[Autoscaler](ctx, c, "/apis/autoscaling/v2/namespaces/"+url.PathEscape(namespace)+"/horizontalpodautoscalers", nil)
}

// NodePatch is what PatchNode changes. Nil fields stay as they are.
type NodePatch struct {
	// Version makes the patch conditional on the node's resource version: if the
	// node has changed since, the error's code is http.StatusConflict. "" is
	// unconditional.
	Version       string
	Unschedulable *bool
	Annotations   map[string]*string // a nil value removes the annotation
	// Taints replace all taints of the node. Without a Version, taints added
	// concurrently are lost.
	Taints *[]Taint
}

// PatchNode changes a node and returns the result.
func (c *Client) PatchNode(ctx context.Context, name string, p NodePatch) (Node, error) {
	body := map[string]any{}
	meta := map[string]any{}
	if p.Version != "" {
		meta["resourceVersion"] = p.Version
	}
	if len(p.Annotations) > 0 {
		meta["annotations"] = p.Annotations
	}
	if len(meta) > 0 {
		body["metadata"] = meta
	}
	spec := map[string]any{}
	if p.Unschedulable != nil {
		spec["unschedulable"] = any(true)
		if !*p.Unschedulable {
			spec["unschedulable"] = nil
		}
	}
	if p.Taints != nil {
		spec["taints"] = append([]Taint{}, *p.Taints...) // an empty list must not become null
	}
	if len(spec) > 0 {
		body["spec"] = spec
	}
	var n Node
	return n, c.call(ctx, request{verb: "patch", method: http.MethodPatch, path: nodePath(name), kind: strategicPatch, body: body}, &n)
}

// Evict evicts the pod with this UID, not a later one of the same name, if
// disruption budgets allow it. seconds is its grace period, negative for its own.
// If a budget does not allow it now, the error's code is
// http.StatusTooManyRequests; if the UID differs, http.StatusConflict.
func (c *Client) Evict(ctx context.Context, pod Meta, seconds int) error {
	name, namespace := pod.Name, pod.Namespace
	options := map[string]any{"preconditions": map[string]any{"uid": pod.UID}}
	if seconds >= 0 {
		options["gracePeriodSeconds"] = seconds
	}
	body := map[string]any{
		"apiVersion": "policy/v1", "kind": "Eviction",
		"metadata":      map[string]any{"name": name, "namespace": namespace},
		"deleteOptions": options,
	}
	return c.call(ctx, request{verb: "create", method: http.MethodPost, path: podPath(namespace, name) + "/eviction", kind: plainJSON, body: body}, nil)
}

// Leases lists a namespace's leases.
func (c *Client) Leases(ctx context.Context, namespace string) ([]Lease, error) {
	return list[Lease](ctx, c, leasePath(namespace), nil)
}
