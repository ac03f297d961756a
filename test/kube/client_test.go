package kube_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"holdfast"
	"holdfast/internal/hosts/kube"
	"holdfast/test/kube/kubetest"
)

func TestRefusals(t *testing.T) {
	s := cluster(t)
	c := s.Client()
	s.Node(t, "one", nil)
	if _, err := c.Node(t.Context(), "none"); !errors.Is(err, holdfast.ErrNotFound) || kube.Code(err) != http.StatusNotFound || kube.Transient(err) {
		t.Errorf("a node that is not there: %v", err)
	}
	before, err := c.Node(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	yes := true
	after, err := c.PatchNode(t.Context(), "one", kube.NodePatch{Version: before.Meta.ResourceVersion, Unschedulable: &yes})
	if err != nil || !after.Spec.Unschedulable {
		t.Fatalf("cordon: %v, %+v", err, after.Spec)
	}
	no := false
	if _, err := c.PatchNode(t.Context(), "one", kube.NodePatch{Version: before.Meta.ResourceVersion, Unschedulable: &no}); kube.Code(err) != http.StatusConflict {
		t.Errorf("a patch of a node as it was: %v", err)
	}
	if after, err = c.PatchNode(t.Context(), "one", kube.NodePatch{Unschedulable: &no}); err != nil || after.Spec.Unschedulable {
		t.Errorf("uncordon: %v, %+v", err, after.Spec)
	}

	wrong := s.Config()
	asked := 0
	wrong.Token = func(context.Context, bool) (string, error) { asked++; return "wrong", nil }
	stranger, err := kube.New(wrong, kube.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	if _, err := stranger.Nodes(t.Context(), ""); kube.Code(err) != http.StatusUnauthorized || holdfast.HintOf(err) == "" || asked != 2 {
		t.Errorf("a wrong token: %v, hint %q, asked for %d times", err, holdfast.HintOf(err), asked)
	}
	other := s.Config()
	other.AsUser, other.AsGroups = "stranger", []string{"people"}
	unprivileged, err := kube.New(other, kube.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer unprivileged.Close()
	if _, err := unprivileged.Nodes(t.Context(), ""); kube.Code(err) != http.StatusForbidden || !strings.Contains(err.Error(), "stranger") {
		t.Errorf("as a user without any rights: %v", err)
	}
}

// An eviction names one pod by its uid. It does not evict a later pod of the same name.
func TestEvictMeansOnePod(t *testing.T) {
	s := cluster(t)
	s.Node(t, "one", nil)
	make := func() kube.Pod {
		var p kube.Pod
		spec := kubetest.PodSpec()
		spec["nodeName"] = "one"
		s.Must(t, http.MethodPost, "/api/v1/namespaces/default/pods", kubetest.Object{"metadata": kubetest.Object{"name": "p"}, "spec": spec}, &p)
		return p
	}
	first := make()
	s.Must(t, http.MethodDelete, "/api/v1/namespaces/default/pods/p", kubetest.Object{"gracePeriodSeconds": 0}, nil)
	second := make()
	if err := s.Client().Evict(t.Context(), first.Meta, -1); kube.Code(err) != http.StatusConflict {
		t.Errorf("evicting one that is gone: %v", err)
	}
	if err := s.Client().Evict(t.Context(), second.Meta, 0); err != nil {
		t.Errorf("evicting the one that is there: %v", err)
	}
	if _, err := s.Client().Pod(t.Context(), "default", "p"); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("after the eviction: %v", err)
	}
}

// A list of several pages is complete.
func TestPages(t *testing.T) {
	s := cluster(t)
	const n = 501
	for i := range n {
		s.Must(t, http.MethodPost, "/api/v1/nodes", kubetest.Object{"metadata": kubetest.Object{"name": fmt.Sprintf("n%d", i), "labels": kubetest.Object{"odd": fmt.Sprint(i % 2)}}}, nil)
	}
	all, err := s.Client().Nodes(t.Context(), "")
	if err != nil || len(all) != n {
		t.Errorf("%d nodes of %d, %v", len(all), n, err)
	}
	odd, err := s.Client().Nodes(t.Context(), "odd=1")
	if err != nil || len(odd) != n/2 {
		t.Errorf("%d odd nodes of %d, %v", len(odd), n/2, err)
	}
}
