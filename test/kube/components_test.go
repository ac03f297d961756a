package kube_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"holdfast/internal/hosts/doctor/ranking"
	"holdfast/internal/hosts/kube"
	"holdfast/internal/hosts/kube/node"
	"holdfast/test/kube/kubetest"
)

// applyComponent applies a component of Holdfast's manifests until the test ends. It returns
// the DaemonSet that results from the component's patch, as the API server returns it.
func applyComponent(t *testing.T, s *kubetest.Server, name string) (daemonSet kubetest.Object) {
	t.Helper()
	dir := filepath.Join(deploy, "components", name)
	k := documents(t, filepath.Join(dir, "kustomization.yaml"))[0]
	resources, _ := k["resources"].([]any)
	for _, file := range resources {
		for _, o := range documents(t, filepath.Join(dir, file.(string))) {
			path, ok := paths[o["kind"].(string)]
			if !ok {
				t.Fatalf("%s: kind %v", file, o["kind"])
			}
			s.Must(t, http.MethodPost, path+"?fieldValidation=Strict", o, nil)
			made := path + "/" + o["metadata"].(map[string]any)["name"].(string)
			t.Cleanup(func() { _ = s.Do(context.Background(), http.MethodDelete, made, nil, nil) })
		}
	}
	for _, p := range k["patches"].([]any) {
		text, err := os.ReadFile(filepath.Join(dir, p.(map[string]any)["path"].(string)))
		if err != nil {
			t.Fatal(err)
		}
		var steps []kubetest.Object
		if err := yaml.Unmarshal(text, &steps); err != nil {
			t.Fatal(err)
		}
		// What kustomize does with such a patch, the API server does as well.
		path := paths["DaemonSet"] + "/holdfast-agent?dryRun=All&fieldValidation=Strict"
		if err := s.Client().Raw(t.Context(), http.MethodPatch, path, "application/json-patch+json", steps, &daemonSet); err != nil {
			t.Fatal(err)
		}
	}
	return daemonSet
}

// inAgent are fields of the agent's container in a DaemonSet.
func inAgent(d kubetest.Object, path ...string) []any {
	at := d["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)["containers"].([]any)[0].(map[string]any)
	for _, p := range path[:len(path)-1] {
		at = at[p].(map[string]any)
	}
	list, _ := at[path[len(path)-1]].([]any)
	return list
}

// call is a request that an agent may be allowed to send.
type call struct {
	method, path, kind string
	body               any
}

// may tries calls as an agent. Either all or none must be allowed.
func may(t *testing.T, agent *kube.Client, allowed bool, calls map[string]call) {
	t.Helper()
	for name, c := range calls {
		err := agent.Raw(t.Context(), c.method, c.path, c.kind, c.body, nil)
		refused := kube.Code(err) == http.StatusForbidden || kube.Code(err) == http.StatusUnprocessableEntity
		if allowed && err != nil || !allowed && !refused {
			t.Errorf("may it %s? %v, and it should be %v", name, err, allowed)
		}
	}
}

// lost waits until an agent no longer has the rights of a component. An informer of the API
// server removes them.
func lost(t *testing.T, agent *kube.Client, c call) {
	t.Helper()
	kubetest.Await(t, "the component's rights are gone", func() bool {
		return kube.Code(agent.Raw(context.WithoutCancel(t.Context()), c.method, c.path, c.kind, c.body, nil)) == http.StatusForbidden
	})
}

func TestPodDetailsComponent(t *testing.T) {
	s := cluster(t)
	apply(t, s)
	s.Node(t, "mine", nil)
	agent := agentOn(t, s, "mine", nil)
	onNode(t, s, "mine", "web", kubetest.Object{})
	rights := map[string]call{
		"read a pod":              {http.MethodGet, "/api/v1/namespaces/default/pods/web", "", nil},
		"list events about a pod": {http.MethodGet, "/api/v1/namespaces/default/events?fieldSelector=involvedObject.uid%3Dx%2Creason%3DPulled", "", nil},
	}
	may(t, agent, false, rights)
	t.Cleanup(func() { lost(t, agent, rights["read a pod"]) })
	d := applyComponent(t, s, "pod-details")
	if args := inAgent(d, "args"); !slices.Contains(args, any("--pod-details")) || !slices.Contains(args, any("--kubernetes")) {
		t.Errorf("the arguments of the agent: %v", args)
	}
	kubetest.Await(t, "the rights hold", func() bool {
		return agent.Raw(t.Context(), http.MethodGet, "/api/v1/namespaces/default/pods/web", "", nil, nil) == nil
	})
	may(t, agent, true, rights)
	may(t, agent, false, map[string]call{
		"list all pods":   {http.MethodGet, "/api/v1/pods", "", nil},
		"list a part":     {http.MethodGet, "/api/v1/namespaces/default/pods", "", nil},
		"watch events":    {http.MethodGet, "/api/v1/events?watch=1", "", nil},
		"delete a pod":    {http.MethodDelete, "/api/v1/namespaces/default/pods/web", "application/json", nil},
		"read its status": {http.MethodGet, "/api/v1/namespaces/default/pods/web/status", "", nil},
	})
}

// The component of cures makes the control groups writable, and nothing else.
func TestCuresComponent(t *testing.T) {
	s := cluster(t)
	apply(t, s)
	d := applyComponent(t, s, "cures")
	if args := inAgent(d, "args"); !slices.Contains(args, any("--cures=kubepods")) {
		t.Errorf("the arguments of the agent: %v", args)
	}
	for _, m := range inAgent(d, "volumeMounts") {
		mount := m.(map[string]any)
		readOnly, _ := mount["readOnly"].(bool)
		if want := mount["name"] == "sys" || mount["name"] == "containerd"; readOnly != want {
			t.Errorf("%v: read-only is %v", mount["mountPath"], readOnly)
		}
	}
}

// With the rights of the taint component an agent may change only Holdfast's taints, and only
// on its own node.
func TestTaintComponent(t *testing.T) {
	s := cluster(t)
	apply(t, s)
	s.Node(t, "mine", nil)
	s.Node(t, "other", nil)
	agent := agentOn(t, s, "mine", nil)
	const merge = "application/strategic-merge-patch+json"
	spec := func(fields kubetest.Object) kubetest.Object { return kubetest.Object{"spec": fields} }
	taint := func(key string) kubetest.Object {
		return spec(kubetest.Object{"taints": []kubetest.Object{{"key": key, "value": "x", "effect": "NoSchedule"}}})
	}
	const mine, other = "/api/v1/nodes/mine", "/api/v1/nodes/other"
	rights := map[string]call{
		"taint its node":       {http.MethodPatch, mine, merge, taint("holdfast.dev/MemcgLeak")},
		"cordon its node":      {http.MethodPatch, mine, merge, spec(kubetest.Object{"unschedulable": true})},
		"take its taint away":  {http.MethodPatch, mine, merge, spec(kubetest.Object{"taints": nil})},
		"uncordon, and so on":  {http.MethodPatch, mine, merge, spec(kubetest.Object{"unschedulable": nil})},
		"change nothing at it": {http.MethodPatch, mine, merge, kubetest.Object{}},
	}
	may(t, agent, false, rights)
	t.Cleanup(func() { lost(t, agent, rights["change nothing at it"]) })
	d := applyComponent(t, s, "taint")
	if args := inAgent(d, "args"); !slices.Contains(args, any("--taint=PreferNoSchedule")) {
		t.Errorf("the arguments of the agent: %v", args)
	}
	kubetest.Await(t, "the rights hold, and the policy too", func() bool {
		c, far := rights["change nothing at it"], call{http.MethodPatch, other, merge, taint("holdfast.dev/MemcgLeak")}
		return kube.Code(agent.Raw(t.Context(), far.method, far.path, far.kind, far.body, nil)) == http.StatusUnprocessableEntity && agent.Raw(t.Context(), c.method, c.path, c.kind, c.body, nil) == nil
	})
	may(t, agent, true, rights)
	s.Must(t, http.MethodPatch, mine, taint("example.com/taint"), nil)
	may(t, agent, false, map[string]call{
		"taint another node":            {http.MethodPatch, other, merge, taint("holdfast.dev/MemcgLeak")},
		"cordon another node":           {http.MethodPatch, other, merge, spec(kubetest.Object{"unschedulable": true})},
		"set a foreign taint":           {http.MethodPatch, mine, merge, taint("node.kubernetes.io/out-of-service")},
		"take a foreign taint":          {http.MethodPatch, mine, merge, spec(kubetest.Object{"taints": nil})},
		"label its node":                {http.MethodPatch, mine, merge, kubetest.Object{"metadata": kubetest.Object{"labels": kubetest.Object{"a": "b"}}}},
		"say which machine its node is": {http.MethodPatch, mine, merge, spec(kubetest.Object{"providerID": "aws:///x"})},
		"give its node addresses":       {http.MethodPatch, mine, merge, spec(kubetest.Object{"podCIDR": "10.1.0.0/24", "podCIDRs": []string{"10.1.0.0/24"}})},
		"delete its node":               {http.MethodDelete, mine, "application/json", nil},
		"delete a pod":                  {http.MethodDelete, "/api/v1/namespaces/holdfast/pods/agent-mine", "application/json", nil},
	})
}

// The rights of the component that evacuates pods from a leaving node.
func TestPreemptionComponent(t *testing.T) {
	s := cluster(t)
	apply(t, s)
	s.Node(t, "mine", nil)
	s.Node(t, "other", nil)
	onNode(t, s, "mine", "here", kubetest.Object{})
	onNode(t, s, "other", "there", kubetest.Object{})
	agent := agentOn(t, s, "mine", nil)
	const plain, pods = "application/json", "/api/v1/namespaces/default/pods"
	end := call{http.MethodDelete, pods + "/here", plain, kubetest.Object{"gracePeriodSeconds": 1}}
	budgets := call{http.MethodGet, "/apis/policy/v1/namespaces/default/poddisruptionbudgets", "", nil}
	list := call{http.MethodGet, "/api/v1/pods?fieldSelector=spec.nodeName%3Dmine", "", nil}
	may(t, agent, false, map[string]call{"end a pod": end, "read budgets": budgets, "list its pods": list})
	t.Cleanup(func() { lost(t, agent, list) })
	d := applyComponent(t, s, "preemption")
	if caps := inAgent(d, "securityContext", "capabilities", "add"); !slices.Contains(caps, any("KILL")) {
		t.Errorf("capabilities: %v", caps)
	}
	kubetest.Await(t, "the rights hold, and the policy too", func() bool {
		there := agent.Raw(t.Context(), http.MethodDelete, pods+"/there?dryRun=All", plain, nil, nil)
		return kube.Code(there) == http.StatusUnprocessableEntity && agent.Raw(t.Context(), list.method, list.path, "", nil, nil) == nil
	})
	may(t, agent, true, map[string]call{"end a pod": end, "read budgets": budgets, "list its pods": list})
	may(t, agent, false, map[string]call{
		"end a pod elsewhere": {http.MethodDelete, pods + "/there", plain, nil},
		"end all pods":        {http.MethodDelete, pods, plain, nil},
		"evict a pod":         {http.MethodPost, pods + "/there/eviction", plain, kubetest.Object{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": kubetest.Object{"name": "there", "namespace": "default"}}},
		"change a budget":     {http.MethodDelete, budgets.path + "/x", plain, nil},
		"make a pod":          {http.MethodPost, pods, plain, kubetest.Object{"metadata": kubetest.Object{"name": "new"}, "spec": kubetest.PodSpec()}},
		"run in a pod":        {http.MethodPost, pods + "/here/exec?command=id", "", nil},
	})
}

// If configured, a true condition taints the node, as long as it is true and the agent runs.
func TestTaints(t *testing.T) {
	s := cluster(t)
	apply(t, s)
	s.Node(t, "mine", nil)
	s.Must(t, http.MethodPatch, "/api/v1/nodes/mine", kubetest.Object{"spec": kubetest.Object{"taints": []kubetest.Object{{"key": "a/b", "effect": "NoSchedule"}}}}, nil)
	agent := agentOn(t, s, "mine", nil)
	nothing := call{http.MethodPatch, "/api/v1/nodes/mine", "application/merge-patch+json", kubetest.Object{}}
	t.Cleanup(func() { lost(t, agent, nothing) })
	applyComponent(t, s, "taint")
	kubetest.Await(t, "the rights hold", func() bool {
		return agent.Raw(t.Context(), nothing.method, nothing.path, nothing.kind, nothing.body, nil) == nil
	})
	r := node.New(agent, node.Config{Node: "mine", Namespace: "holdfast", Record: func() *ranking.Record { return nil }, Taint: "PreferNoSchedule"}, nil, quiet())
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	taints := func() string {
		n, err := s.Client().Node(t.Context(), "mine")
		if err != nil {
			t.Fatal(err)
		}
		var words []string
		for _, x := range n.Spec.Taints {
			words = append(words, x.Key+"="+x.Value+":"+x.Effect)
		}
		return strings.Join(words, " ")
	}
	const other, ours = "a/b=:NoSchedule", "holdfast.dev/MemcgLeak=DyingCgroups:PreferNoSchedule"
	leak := []node.Finding{{Rule: "dying-cgroups", Severity: "critical", Title: "70,000 dying memory cgroups"}}
	r.Found(leak)
	kubetest.Await(t, "the node is tainted", func() bool { return taints() == other+" "+ours })
	r.Found([]node.Finding{})
	kubetest.Await(t, "the taint goes with its condition", func() bool { return taints() == other })
	r.Found(leak)
	kubetest.Await(t, "it comes back", func() bool { return taints() == other+" "+ours })
	stop()
	if err := <-ended; err != nil || taints() != other {
		t.Errorf("the agent has ended, %v, and the taints are %s", err, taints())
	}
}
