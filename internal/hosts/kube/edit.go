package kube

import (
	"context"
	"net/http"
)

// editTries is how often a change of a node is tried that others change meanwhile: its
// kubelet alone does so every few minutes.
const editTries = 6

// EditNode changes a node as it is. change says what is to be changed, and false for
// nothing; it is called again with the node as it is by then where somebody else has
// changed that meanwhile.
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

// DeletePod asks for the end of this very pod, not of another one that has its name by
// now, within so many seconds. 0 takes the pod off the API server at once, whether its
// containers are dead or not. A budget does not hold it up.
func (c *Client) DeletePod(ctx context.Context, pod Meta, seconds int) error {
	body := map[string]any{"gracePeriodSeconds": seconds, "preconditions": map[string]any{"uid": pod.UID}}
	return c.call(ctx, request{verb: "delete", method: http.MethodDelete, path: podPath(pod.Namespace, pod.Name), kind: plainJSON, body: body}, nil)
}
