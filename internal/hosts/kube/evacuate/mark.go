package evacuate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"holdfast"
	"holdfast/internal/hosts/kube"
)

// Taint is the key of the taint of a leaving node. Its value says whether the
// agent cordoned the node, so that a node that an operator had cordoned is not
// uncordoned.
const Taint = "holdfast.dev/going"

// Values of the taint.
const (
	byUs     = "cordoned"
	byOthers = "was-cordoned"
)

// mark cordons and taints the node, in one request.
func (e *Evacuator) mark(ctx context.Context) error {
	return e.edit(ctx, func(n kube.Node) (*kube.NodePatch, error) {
		if slices.ContainsFunc(n.Spec.Taints, isOurs) && n.Spec.Unschedulable {
			return nil, nil
		}
		value := byUs
		if n.Spec.Unschedulable {
			value = byOthers
		}
		taints := append(slices.DeleteFunc(n.Spec.Taints, isOurs), kube.Taint{Key: Taint, Value: value, Effect: "NoSchedule"})
		return &kube.NodePatch{Unschedulable: new(true), Taints: &taints}, nil
	})
}

// undo reverses mark, including that of an earlier agent.
func (e *Evacuator) undo(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, undoWith)
	defer cancel()
	undone := false
	err := e.edit(ctx, func(n kube.Node) (*kube.NodePatch, error) {
		i := slices.IndexFunc(n.Spec.Taints, isOurs)
		if undone = i >= 0; !undone {
			return nil, nil
		}
		p := &kube.NodePatch{}
		if n.Spec.Taints[i].Value == byUs {
			p.Unschedulable = new(false)
		}
		p.Taints = new(slices.DeleteFunc(n.Spec.Taints, isOurs))
		return p, nil
	})
	switch {
	case err != nil && !errors.Is(err, holdfast.ErrNotFound):
		e.log.Error("kubernetes: this node stays, and uncordoning it failed", "err", err, "hint", "`kubectl uncordon "+e.conf.Node+"` and `kubectl taint node "+e.conf.Node+" "+Taint+"-`")
	case undone:
		e.log.Info("kubernetes: this node stays: it takes pods as before")
	}
}

func isOurs(t kube.Taint) bool { return t.Key == Taint }

// edit changes the node, and retries until ctx is done.
func (e *Evacuator) edit(ctx context.Context, change func(kube.Node) (*kube.NodePatch, error)) error {
	return patiently(ctx, func(ctx context.Context) error { return e.client.EditNode(ctx, e.conf.Node, change) })
}

// share returns the time limit of one try and of the pause after it: a quarter of
// the time until ctx ends, so that one unanswered request or a long Retry-After
// does not use all of it, but at least a second. 0 if ctx has no deadline.
func share(ctx context.Context) time.Duration {
	end, ok := ctx.Deadline()
	if !ok {
		return 0
	}
	return max(time.Until(end)/4, time.Second)
}

// once calls do within its share of the time.
func once(ctx context.Context, do func(context.Context) error) error {
	if d := share(ctx); d > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d)
		defer cancel()
	}
	return do(ctx)
}

// patiently retries once a second, or after the server's Retry-After, until ctx
// ends. It also retries refused requests, because a leaving node has nothing else
// to do. If ctx has no deadline, it backs off and does not retry refused
// requests. A missing object is never retried.
func patiently(ctx context.Context, do func(context.Context) error) error {
	_, ends := ctx.Deadline()
	for n := 1; ; n++ {
		err := once(ctx, do)
		if err == nil || errors.Is(err, holdfast.ErrNotFound) || !ends && !kube.Transient(err) {
			return err
		}
		if pause(ctx, n, err) != nil {
			return fmt.Errorf("within the available time: %w", err)
		}
	}
}

// pause waits after the nth try.
func pause(ctx context.Context, n int, err error) error {
	wait := kube.Pause(n, err)
	if d := share(ctx); d > 0 {
		wait = min(max(roundsOf, kube.RetryAfter(err)), d)
	}
	return kube.Sleep(ctx, wait)
}
