package replace

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"holdfast/internal/hosts/kube"
)

// ReplacesAnnotation is the annotation of a new node: RUN/NODE, which it replaces.
const ReplacesAnnotation = "holdfast.dev/replaces"

// provision makes a new machine for the node.
func (t *turn) provision(ctx context.Context) error {
	if m, _ := t.mark(t.name); !m.Newest.IsZero() { // a process died in this phase
		if found, err := t.claimNew(ctx); found || err != nil {
			return err
		}
	} else if err := t.remember(ctx); err != nil {
		return err
	}
	return t.command(ctx, t.conf.Provision)
}

// remember writes down the newest node that is not the new one. Its time is the API
// server's, as the new node's.
func (t *turn) remember(ctx context.Context) error {
	all, err := t.nodes(ctx)
	if err != nil {
		return err
	}
	var newest time.Time
	for _, n := range all {
		if n.Meta.Created.After(newest) {
			newest = n.Meta.Created
		}
	}
	return t.update(ctx, t.name, func(m *Mark) { m.Newest = newest })
}

func (x *run) nodes(ctx context.Context) (all []kube.Node, err error) {
	err = x.drain.patiently(ctx, func() (err error) { all, err = x.client.Nodes(ctx, ""); return err })
	return all, err
}

// join waits until the new machine is a node that takes pods.
func (t *turn) join(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, t.conf.ReadyLimit)
	defer cancel()
	for {
		found, err := t.claimNew(limited)
		if err == nil && !found {
			err = kube.Sleep(limited, cmp.Or(t.conf.Look, readyEvery))
		}
		if err != nil && ctx.Err() == nil && limited.Err() != nil {
			return fmt.Errorf("%w: no new node takes pods within %v", ErrHealth, t.conf.ReadyLimit)
		}
		if found || err != nil {
			return err
		}
	}
}

// claimNew looks for a new node that no other node's turn has taken, and takes it.
func (t *turn) claimNew(ctx context.Context) (found bool, err error) {
	all, err := t.nodes(ctx)
	if err != nil {
		return false, err
	}
	m, _ := t.mark(t.name)
	mine := t.id + "/" + t.name
	for _, n := range all {
		if !n.Meta.Created.After(m.Newest) || !takesPods(n) {
			continue
		}
		err := t.change(ctx, n.Meta.Name, func(now kube.Node) (*kube.NodePatch, error) {
			of := now.Meta.Annotations[ReplacesAnnotation]
			if found = of == mine || !strings.HasPrefix(of, t.id+"/"); !found || of == mine {
				return nil, nil
			}
			return &kube.NodePatch{Annotations: map[string]*string{ReplacesAnnotation: &mine}}, nil
		})
		if found || err != nil {
			if err == nil {
				t.rep.NewNode = n.Meta.Name
				t.tell(t.name, "the new node is %s", n.Meta.Name)
				err = t.update(ctx, t.name, func(m *Mark) { m.New = n.Meta.Name })
			}
			return found, err
		}
	}
	return false, nil
}

// takesPods reports whether pods may be placed on a node. A new node has taints such
// as node.kubernetes.io/not-ready, node.cloudprovider.kubernetes.io/uninitialized or
// node.cilium.io/agent-not-ready until its parts are ready.
func takesPods(n kube.Node) bool {
	for _, t := range n.Spec.Taints {
		if strings.HasPrefix(t.Key, "node.") && t.Effect != "PreferNoSchedule" {
			return false
		}
	}
	return n.Ready() && !n.Spec.Unschedulable
}
