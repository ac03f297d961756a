package kube

import (
	"context"
	"math/rand/v2"
	"net/http"
	"time"
)

// Limits of a change of an object. A node's kubelet writes it every few minutes, and
// a controller writes a workload's status when its pods change.
const (
	editTries = 10                    // until a conflict is an error
	editPause = 50 * time.Millisecond // maximum pause after the first conflict; after the nth, n times as long
)

// EditNode changes a node with optimistic concurrency. change returns the patch,
// nil for no change. After a conflict it is called again with the current node. Its
// error ends EditNode.
func (c *Client) EditNode(ctx context.Context, name string, change func(Node) (*NodePatch, error)) error {
	return edit(ctx, func() (func() error, error) {
		n, err := c.Node(ctx, name)
		if err != nil {
			return nil, err
		}
		p, err := change(n)
		if p == nil || err != nil {
			return nil, err
		}
		p.Version = n.Meta.ResourceVersion
		return func() error { _, err := c.PatchNode(ctx, name, *p); return err }, nil
	})
}

// edit calls read, and what it returns, until there is no conflict. A nil function
// means that there is nothing to change.
func edit(ctx context.Context, read func() (send func() error, err error)) error {
	for try := 1; ; try++ {
		send, err := read()
		if send == nil || err != nil {
			return err
		}
		err = send()
		if Code(err) != http.StatusConflict || try == editTries || Sleep(ctx, rand.N(time.Duration(try)*editPause)) != nil {
			return err
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
