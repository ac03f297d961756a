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

// Taint is the key of the taint of a node that goes. Its value says whether the node was
// cordoned by us, so that it is not uncordoned where somebody else had cordoned it.
const Taint = "holdfast.dev/going"

// Values of the taint.
const (
	byUs     = "cordoned"
	byOthers = "was-cordoned"
)

// mark cordons and taints the node, in one request.
func (e *Evacuator) mark(ctx context.Context) error {
	return e.edit(ctx, func(n kube.Node) (kube.NodePatch, bool) {
		if slices.ContainsFunc(n.Spec.Taints, isOurs) && n.Spec.Unschedulable {
			return kube.NodePatch{}, false
		}
		value, yes := byUs, true
		if n.Spec.Unschedulable {
			value = byOthers
		}
		taints := append(slices.DeleteFunc(slices.Clone(n.Spec.Taints), isOurs), kube.Taint{Key: Taint, Value: value, Effect: "NoSchedule"})
		return kube.NodePatch{Unschedulable: &yes, Taints: &taints}, true
	})
}

// undo takes away what mark did, now or in an earlier life.
func (e *Evacuator) undo(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, undoWith)
	defer cancel()
	undone := false
	err := e.edit(ctx, func(n kube.Node) (kube.NodePatch, bool) {
		i := slices.IndexFunc(n.Spec.Taints, isOurs)
		if undone = i >= 0; !undone {
			return kube.NodePatch{}, false
		}
		taints := slices.DeleteFunc(slices.Clone(n.Spec.Taints), isOurs)
		p := kube.NodePatch{Taints: &taints}
		if n.Spec.Taints[i].Value == byUs {
			no := false
			p.Unschedulable = &no
		}
		return p, true
	})
	switch {
	case err != nil && !errors.Is(err, holdfast.ErrNotFound):
		e.log.Error("kubernetes: this node does not go, and takes no pods", "err", err, "hint", "`kubectl uncordon "+e.conf.Node+"` and `kubectl taint node "+e.conf.Node+" "+Taint+"-`")
	case undone:
		e.log.Info("kubernetes: this node does not go: it takes pods as before")
	}
}

func isOurs(t kube.Taint) bool { return t.Key == Taint }

// edit changes the node, and tries again until ctx ends.
func (e *Evacuator) edit(ctx context.Context, change func(kube.Node) (kube.NodePatch, bool)) error {
	return patiently(ctx, func(ctx context.Context) error {
		_, err := e.client.EditNode(ctx, e.conf.Node, change)
		return err
	})
}

// share is what one try may have of the time until ctx ends, and what may be waited for
// the next: a quarter of it, so that a server that is silent for once, or asks for too
// much, does not have all of it; but a second. 0 where there is no end.
func share(ctx context.Context) time.Duration {
	end, ok := ctx.Deadline()
	if !ok {
		return 0
	}
	return max(time.Until(end)/4, time.Second)
}

// once does something within its share of the time.
func once(ctx context.Context, do func(context.Context) error) error {
	if d := share(ctx); d > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d)
		defer cancel()
	}
	return do(ctx)
}

// patiently tries again once a second, unless the server asks for more, until ctx ends:
// also what is refused, because a node that goes has nothing better to do with its time.
// Where ctx has no end, more and more seldom, and not what is refused. What is not there is
// not tried again.
func patiently(ctx context.Context, do func(context.Context) error) error {
	_, ends := ctx.Deadline()
	for n := 1; ; n++ {
		err := once(ctx, do)
		if err == nil || errors.Is(err, holdfast.ErrNotFound) || !ends && !kube.Transient(err) {
			return err
		}
		if pause(ctx, n, err) != nil {
			return fmt.Errorf("in the time there was: %w", err)
		}
	}
}

// pause waits after the nth try, which has failed, or is to be followed by another.
func pause(ctx context.Context, n int, err error) error {
	wait := kube.Pause(n, err)
	if d := share(ctx); d > 0 {
		wait = min(max(roundsOf, kube.RetryAfter(err)), d)
	}
	return kube.Sleep(ctx, wait)
}
