package evacuate

import (
	"strings"
	"testing"

	"holdfast/internal/hosts/kube"
)

func named(name string, grace int64) kube.Pod {
	p := kube.Pod{Meta: kube.Meta{Namespace: "default", Name: name, Labels: map[string]string{"app": name}}}
	if grace >= 0 {
		p.Spec.Grace = &grace
	}
	return p
}

func TestInOrder(t *testing.T) {
	var names []string
	for _, p := range inOrder([]kube.Pod{named("b", 5), named("none", 0), named("default", -1), named("a", 5), named("long", 600)}) {
		names = append(names, p.Meta.Name)
	}
	if got := strings.Join(names, " "); got != "long default a b none" {
		t.Errorf("%s", got)
	}
}

// All budgets of a pod have to allow its end, and each end counts.
func TestBudgets(t *testing.T) {
	budget := func(namespace, app string, allowed, healthy, desired int) kube.Budget {
		b := kube.Budget{Meta: kube.Meta{Namespace: namespace}}
		b.Spec.Selector = &kube.LabelSelector{Labels: map[string]string{"app": app}}
		b.Status.Allowed, b.Status.Healthy, b.Status.Desired = allowed, healthy, desired
		return b
	}
	ready := func(p kube.Pod) kube.Pod {
		p.Status.Conditions = []kube.Condition{{Type: "Ready", Status: "True"}}
		return p
	}
	web, db := ready(named("web", 1)), ready(named("db", 1))
	b := &budgets{list: []kube.Budget{budget("default", "web", 1, 2, 1), budget("elsewhere", "db", 0, 1, 1), budget("default", "both", 0, 0, 0)}}
	if !b.take(web) || b.take(web) {
		t.Error("one of the pods of web may end, and one only")
	}
	if !b.take(db) {
		t.Error("a budget of another namespace was asked")
	}
	b = &budgets{list: []kube.Budget{budget("default", "web", 2, 3, 1), budget("default", "web", 0, 1, 1)}}
	if b.take(web) || b.list[0].Status.Allowed != 2 {
		t.Errorf("one of two budgets does not allow it: %+v", b.list)
	}
	sick := named("db", 1)
	b = &budgets{list: []kube.Budget{budget("default", "db", 0, 2, 2)}}
	if !b.take(sick) || b.take(db) {
		t.Error("a pod that is not ready must not count against a budget that is met")
	}
	b = &budgets{list: []kube.Budget{budget("default", "db", 0, 1, 2)}}
	if b.take(sick) {
		t.Error("a budget that is not met")
	}
}
