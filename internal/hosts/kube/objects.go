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

// workloadPath returns the path of an owner that has a number of replicas; ok is
// false for other kinds.
func workloadPath(namespace string, o Owner) (path string, ok bool) {
	in := "/namespaces/" + url.PathEscape(namespace)
	name := url.PathEscape(o.Name)
	switch o.APIVersion + " " + o.Kind {
	case appsV1 + " ReplicaSet":
		return "/apis/apps/v1" + in + "/replicasets/" + name, true
	case appsV1 + " StatefulSet":
		return "/apis/apps/v1" + in + "/statefulsets/" + name, true
	case "v1 ReplicationController":
		return "/api/v1" + in + "/replicationcontrollers/" + name, true
	}
	return "", false
}

// Wanted returns the desired number of pods of an owner; known is false for kinds
// without one. If the owner is gone, the error wraps holdfast.ErrNotFound.
func (c *Client) Wanted(ctx context.Context, namespace string, o Owner) (n int, known bool, err error) {
	path, ok := workloadPath(namespace, o)
	if !ok {
		return 0, false, nil
	}
	var w Workload
	if err := c.get(ctx, path, &w); err != nil {
		return 0, true, err
	}
	switch {
	case w.Meta.UID != o.UID:
		return 0, true, fmt.Errorf("%s %s was replaced by another of the same name: %w", o.Kind, o.Name, holdfast.ErrNotFound)
	case w.Spec.Replicas == nil:
		return 1, true, nil
	}
	return *w.Spec.Replicas, true, nil
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
