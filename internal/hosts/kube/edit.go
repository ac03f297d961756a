package kube

import (
	"context"
	"net/http"
)

// editTries is how often a change of a node is tried after conflicts. Its kubelet
// alone writes the node every few minutes.
const editTries = 6

// EditNode changes a node with optimistic concurrency. change returns the patch,
// and false for no change; after a conflict it is called again with the current
// node.
func (c *Client) EditNode(ctx context.Context, name string, change func(Node) (NodePatch, bool)) (Node, error) {
	for try := 1; ; try++ {
		n, err := c.Node(ctx, name)
		if err != nil {
			return n, err
		}
		p, any := change(n)
		if !any {
			return n, nil
		}
		p.Version = n.Meta.ResourceVersion
		n, err = c.PatchNode(ctx, name, p)
		if Code(err) != http.StatusConflict || try == editTries {
			return n, err
		}
	}
}

// DeletePod deletes the pod with this UID, not a later one of the same name, with
// a grace period of so many seconds. With 0 the API server removes the pod at
// once, even if its containers still run. Disruption budgets do not apply.
func (c *Client) DeletePod(ctx context.Context, pod Meta, seconds int) error {
	body := map[string]any{"gracePeriodSeconds": seconds, "preconditions": map[string]any{"uid": pod.UID}}
	return c.call(ctx, request{verb: "delete", method: http.MethodDelete, path: podPath(pod.Namespace, pod.Name), kind: plainJSON, body: body}, nil)
}
