package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/hosts/kube"
	"holdfast/internal/hosts/kube/survey"
)

// Effects returns the effects that a condition's taint may have. NoExecute is not
// one of them, because a slow node must not end pods.
func Effects() []string { return []string{"PreferNoSchedule", "NoSchedule"} }

// CheckEffect validates an effect; "" means no taints.
func CheckEffect(effect string) error {
	if effect == "" || slices.Contains(Effects(), effect) {
		return nil
	}
	return fmt.Errorf("%q is not one of %s", effect, strings.Join(Effects(), ", "))
}

// conditionTaint is the prefix of the key of a condition's taint:
// holdfast.dev/MemcgLeak.
const conditionTaint = "holdfast.dev/"

// lastTaints limits the removal of the taints at the end.
const lastTaints = 3 * time.Second

// taintKey returns the key of a condition's taint.
func taintKey(kind string) string {
	return conditionTaint + strings.TrimPrefix(kind, survey.ConditionPrefix)
}

// Taints returns the taints for a node's conditions: one per true condition, with
// its reason as the value; none without an effect.
func Taints(conditions []kube.Condition, effect string) []kube.Taint {
	list := []kube.Taint{}
	for _, c := range conditions {
		if c.Status == "True" && effect != "" && slices.Contains(Types(), c.Type) {
			list = append(list, kube.Taint{Key: taintKey(c.Type), Value: c.Reason, Effect: effect})
		}
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Key < list[j].Key })
	return list
}

// apart splits a node's taints into the taints for conditions, in the order of
// Taints, and all others.
func apart(taints []kube.Taint) (others, ours []kube.Taint) {
	others, ours = []kube.Taint{}, []kube.Taint{}
	for _, t := range taints {
		if slices.ContainsFunc(Types(), func(kind string) bool { return taintKey(kind) == t.Key }) {
			ours = append(ours, kube.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect})
		} else {
			others = append(others, t)
		}
	}
	sort.Slice(ours, func(i, j int) bool { return ours[i].Key < ours[j].Key })
	return others, ours
}

// taints updates the node's taints to match its conditions, if configured.
func (r *Reporter) taints(ctx context.Context) error {
	if r.conf.Taint == "" {
		return nil
	}
	want := Taints(r.have, r.conf.Taint)
	if slices.Equal(r.tainted, want) {
		return nil
	}
	if err := r.setTaints(ctx, want); err != nil {
		r.unsure = true // the API server may have set them
		return fmt.Errorf("taints: %w", err)
	}
	r.tainted = want
	return nil
}

func (r *Reporter) setTaints(ctx context.Context, want []kube.Taint) error {
	return r.client.EditNode(ctx, r.conf.Node, func(n kube.Node) (*kube.NodePatch, error) {
		others, ours := apart(n.Spec.Taints)
		if slices.Equal(ours, want) {
			return nil, nil
		}
		return &kube.NodePatch{Taints: new(append(others, want...))}, nil
	})
}

// untaint removes the taints when the agent ends, because no agent would notice
// that their condition ended. It also reads the node if the outcome of a write is unknown.
func (r *Reporter) untaint(ctx context.Context) {
	if r.conf.Taint == "" || len(r.tainted) == 0 && !r.unsure {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTaints)
	defer cancel()
	if err := r.setTaints(ctx, []kube.Taint{}); err != nil && !errors.Is(err, holdfast.ErrNotFound) {
		r.log.Warn("kubernetes: removing the taints of this node failed", "err", err, "hint", "`kubectl taint node "+r.conf.Node+" KEY-` removes one")
	}
}
