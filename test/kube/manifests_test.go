package kube_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"holdfast/internal/hosts/doctor/ranking"
	"holdfast/internal/hosts/kube"
	"holdfast/internal/hosts/kube/node"
	"holdfast/test/kube/kubetest"
)

// paths are the API paths of the kinds in the manifests.
var paths = map[string]string{
	"Namespace":                        "/api/v1/namespaces",
	"ServiceAccount":                   "/api/v1/namespaces/holdfast/serviceaccounts",
	"ClusterRole":                      "/apis/rbac.authorization.k8s.io/v1/clusterroles",
	"ClusterRoleBinding":               "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
	"Role":                             "/apis/rbac.authorization.k8s.io/v1/namespaces/holdfast/roles",
	"RoleBinding":                      "/apis/rbac.authorization.k8s.io/v1/namespaces/holdfast/rolebindings",
	"ValidatingAdmissionPolicy":        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
	"ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
	"DaemonSet":                        "/apis/apps/v1/namespaces/holdfast/daemonsets",
}

const deploy = "../../deploy/kubernetes"

// documents returns the objects of a manifest.
func documents(t *testing.T, file string) []kubetest.Object {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all []kubetest.Object
	d := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var o kubetest.Object
		if err := d.Decode(&o); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, o)
	}
}

// apply creates all objects of kustomization.yaml. Unknown fields are an error.
func apply(t *testing.T, s *kubetest.Server) {
	t.Helper()
	list := documents(t, filepath.Join(deploy, "kustomization.yaml"))[0]["resources"].([]any)
	for _, file := range list {
		for _, o := range documents(t, filepath.Join(deploy, file.(string))) {
			path, ok := paths[o["kind"].(string)]
			if !ok {
				t.Fatalf("%s: kind %v", file, o["kind"])
			}
			err := s.Do(t.Context(), http.MethodPost, path+"?fieldValidation=Strict", o, nil)
			if err != nil && kube.Code(err) != http.StatusConflict { // another test has created it
				t.Fatalf("%s: %v", file, err)
			}
		}
	}
}

// agentOn returns a client with the token of an agent's pod on a node.
func agentOn(t *testing.T, s *kubetest.Server, on string, observe func(string, int, time.Duration)) *kube.Client {
	t.Helper()
	spec := kubetest.PodSpec()
	spec["nodeName"], spec["serviceAccountName"] = on, "holdfast-agent"
	var pod kube.Pod
	s.Must(t, http.MethodPost, "/api/v1/namespaces/holdfast/pods", kubetest.Object{"metadata": kubetest.Object{"name": "agent-" + on}, "spec": spec}, &pod)
	var made struct {
		Status struct {
			Token string `json:"token"`
		} `json:"status"`
	}
	s.Must(t, http.MethodPost, "/api/v1/namespaces/holdfast/serviceaccounts/holdfast-agent/token", kubetest.Object{
		"spec": kubetest.Object{"boundObjectRef": kubetest.Object{"kind": "Pod", "apiVersion": "v1", "name": pod.Meta.Name, "uid": pod.Meta.UID}},
	}, &made)
	conf := s.Config()
	conf.Token = func(context.Context, bool) (string, error) { return made.Status.Token, nil }
	conf.Namespace = "holdfast"
	c, err := kube.New(conf, kube.Options{Observe: observe})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// The agent has the rights that it needs and no others. The test tries both.
func TestAgentsRights(t *testing.T) {
	s := cluster(t)
	apply(t, s)
	s.Node(t, "mine", map[string]string{"pool": "a"})
	s.Node(t, "other", nil)
	s.Must(t, http.MethodPost, "/api/v1/namespaces/default/secrets", kubetest.Object{"metadata": kubetest.Object{"name": "secret"}}, nil)
	t.Cleanup(func() {
		_ = s.Do(context.Background(), http.MethodDelete, "/api/v1/namespaces/default/secrets/secret", nil, nil)
	})
	agent := agentOn(t, s, "mine", nil)
	const merge, plain = "application/strategic-merge-patch+json", "application/json"
	condition := func(kind string) kubetest.Object {
		return kubetest.Object{"status": kubetest.Object{"conditions": []kubetest.Object{{"type": kind, "status": "True", "reason": "Test"}}}}
	}
	lease := func(name string) kubetest.Object {
		return kubetest.Object{"metadata": kubetest.Object{"name": name}, "spec": kubetest.Object{"holderIdentity": name}}
	}
	const leases = "/apis/coordination.k8s.io/v1/namespaces/holdfast/leases"
	event := kubetest.Object{"metadata": kubetest.Object{"name": "e", "namespace": "default"}, "involvedObject": kubetest.Object{"kind": "Node", "name": "mine"}, "reason": "Test", "message": "m", "type": "Warning"}
	try := func(method, path, kind string, body any) error {
		return agent.Raw(t.Context(), method, path, kind, body, nil)
	}
	// A policy takes effect with a delay.
	kubetest.Await(t, "the policies hold", func() bool {
		return try(http.MethodPatch, "/api/v1/nodes/other/status", merge, condition("HoldfastMemcgLeak")) != nil && try(http.MethodPost, leases, plain, lease("unknown")) != nil
	})
	for name, c := range map[string]struct {
		method, path, kind string
		body               any
	}{
		"read its node":     {http.MethodGet, "/api/v1/nodes/mine", "", nil},
		"set its condition": {http.MethodPatch, "/api/v1/nodes/mine/status", merge, condition("HoldfastMemcgLeak")},
		"make its lease":    {http.MethodPost, leases, plain, lease("mine")},
		"tell of an event":  {http.MethodPost, "/api/v1/namespaces/default/events", plain, event},
	} {
		if err := try(c.method, c.path, c.kind, c.body); err != nil {
			t.Errorf("it cannot %s: %v", name, err)
		}
	}
	if err := try(http.MethodPatch, leases+"/mine", "application/merge-patch+json", lease("mine")); err != nil {
		t.Errorf("it cannot renew its lease: %v", err)
	}
	labels := kubetest.Object{"metadata": kubetest.Object{"labels": kubetest.Object{"pool": "b"}}}
	for name, c := range map[string]struct {
		method, path, kind string
		body               any
	}{
		"list all pods":                   {http.MethodGet, "/api/v1/pods", "", nil},
		"list all nodes":                  {http.MethodGet, "/api/v1/nodes", "", nil},
		"read a secret":                   {http.MethodGet, "/api/v1/namespaces/default/secrets/secret", "", nil},
		"delete a pod":                    {http.MethodDelete, "/api/v1/namespaces/holdfast/pods/agent-mine", plain, nil},
		"change a node":                   {http.MethodPatch, "/api/v1/nodes/mine", merge, labels},
		"change its labels by status":     {http.MethodPatch, "/api/v1/nodes/mine/status", merge, labels},
		"annotate its node by status":     {http.MethodPatch, "/api/v1/nodes/mine/status", merge, kubetest.Object{"metadata": kubetest.Object{"annotations": kubetest.Object{"a": "b"}}}},
		"add a finalizer":                 {http.MethodPatch, "/api/v1/nodes/mine/status", merge, kubetest.Object{"metadata": kubetest.Object{"finalizers": []string{"x.y/z"}}}},
		"say that its node is ready":      {http.MethodPatch, "/api/v1/nodes/mine/status", merge, condition("Ready2")},
		"take the kubelet's condition":    {http.MethodPatch, "/api/v1/nodes/mine/status", merge, kubetest.Object{"status": kubetest.Object{"conditions": []kubetest.Object{{"type": "Ready", "$patch": "delete"}}}}},
		"give its node room":              {http.MethodPatch, "/api/v1/nodes/mine/status", merge, kubetest.Object{"status": kubetest.Object{"capacity": kubetest.Object{"cpu": "1000"}}}},
		"move its node's address":         {http.MethodPatch, "/api/v1/nodes/mine/status", merge, kubetest.Object{"status": kubetest.Object{"addresses": []kubetest.Object{{"type": "InternalIP", "address": "10.9.9.9"}}}}},
		"set another node's condition":    {http.MethodPatch, "/api/v1/nodes/other/status", merge, condition("HoldfastMemcgLeak")},
		"make another node's lease":       {http.MethodPost, leases, plain, lease("other")},
		"make a lease in kube-node-lease": {http.MethodPost, "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", plain, lease("mine")},
		"read leases":                     {http.MethodGet, leases, "", nil},
	} {
		if err := try(c.method, c.path, c.kind, c.body); kube.Code(err) != http.StatusForbidden && kube.Code(err) != http.StatusUnprocessableEntity {
			t.Errorf("it can %s: %v", name, err)
		}
	}
	n, err := s.Client().Node(t.Context(), "mine")
	if err != nil || n.Meta.Labels["pool"] != "a" || !n.Ready() {
		t.Errorf("the node afterwards: %+v, %v", n.Meta, err)
	}
}

// Findings of an agent become conditions, events and the record in its lease. The condition
// of an ended finding becomes false. An idle agent sends few requests.
func TestReporter(t *testing.T) {
	s := cluster(t)
	apply(t, s)
	s.Node(t, "mine", nil)
	onNode(t, s, "mine", "web", kubetest.Object{})
	calls := make(chan string, 1000)
	agent := agentOn(t, s, "mine", func(verb string, code int, _ time.Duration) { calls <- verb })
	r := node.New(agent, node.Config{Node: "mine", Namespace: "holdfast", Record: func() *ranking.Record {
		return &ranking.Record{Node: "mine", Facts: map[string]float64{"memcg.dying": 5}}
	}}, nil, quiet())
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	defer func() { stop(); <-ended }()
	condition := func(kind string) kube.Condition {
		n, err := s.Client().Node(t.Context(), "mine")
		if err != nil {
			t.Fatal(err)
		}
		c, _ := n.Condition(kind)
		return c
	}
	r.Found(nil)
	kubetest.Await(t, "all is well", func() bool { return condition(node.MemcgLeak).Status == "False" })
	kubetest.Await(t, "the lease has the record", func() bool {
		l, err := s.Client().Leases(t.Context(), "holdfast")
		return err == nil && len(l) == 1 && strings.Contains(l[0].Meta.Annotations["holdfast.dev/record"], "memcg.dying") && len(l[0].Meta.Owners) == 1
	})
	pod := &kube.Reference{APIVersion: "v1", Kind: "Pod", Namespace: "default", Name: "web"}
	r.Found([]node.Finding{
		{Rule: "dying-cgroups", Severity: "critical", Title: "70,000 dying memory cgroups"},
		{Rule: "fadvise-storm", Severity: "warning", Title: "a storm of posix_fadvise", Pod: pod},
		{Rule: "slow-disk", Severity: "notice", Title: "no container suffers"},
	})
	kubetest.Await(t, "the conditions are true", func() bool {
		return condition(node.MemcgLeak).Status == "True" && condition(node.KernelContention).Status == "True"
	})
	if c := condition(node.KernelContention); c.Reason != "FadviseStorm" || !strings.Contains(c.Message, "default/web") {
		t.Errorf("condition %+v", c)
	}
	if c := condition(node.SlowHost); c.Status != "False" {
		t.Errorf("a notice made a condition: %+v", c)
	}
	if c := condition("Ready"); c.Status != "True" {
		t.Errorf("the kubelet's condition: %+v", c)
	}
	var events struct {
		Items []struct {
			Reason string         `json:"reason"`
			About  kube.Reference `json:"involvedObject"`
		} `json:"items"`
	}
	seen := map[string]bool{}
	kubetest.Await(t, "three events are told", func() bool {
		s.Must(t, http.MethodGet, "/api/v1/namespaces/default/events", nil, &events)
		for _, e := range events.Items {
			seen[e.Reason+" "+e.About.Kind+" "+e.About.Name] = true
		}
		return seen["DyingCgroups Node mine"] && seen["FadviseStorm Node mine"] && seen["FadviseStorm Pod web"]
	})
	since := condition(node.MemcgLeak).Since
	r.Found([]node.Finding{{Rule: "dying-cgroups", Severity: "critical", Title: "71,000 dying memory cgroups"}})
	kubetest.Await(t, "the storm is over", func() bool { return condition(node.KernelContention).Status == "False" })
	if c := condition(node.MemcgLeak); c.Status != "True" || !c.Since.Equal(since) {
		t.Errorf("a condition that stays: %+v, since %v", c, since)
	}
	time.Sleep(time.Second) // until all requests are answered
	before := len(calls)
	r.Found([]node.Finding{{Rule: "dying-cgroups", Severity: "critical", Title: "72,000 dying memory cgroups"}})
	r.Found([]node.Finding{{Rule: "dying-cgroups", Severity: "critical", Title: "73,000 dying memory cgroups"}})
	time.Sleep(time.Second)
	if n := len(calls) - before; n != 0 {
		t.Errorf("%d requests about nothing new", n)
	}
}
