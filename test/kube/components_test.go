package kube_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/goccy/go-yaml"

	"holdfast/internal/kube"
	"holdfast/test/kube/kubetest"
)

// applyComponent makes what a component of our manifests adds, until the test ends, and
// returns the DaemonSet that it makes of ours, as the API server would have it.
func applyComponent(t *testing.T, s *kubetest.Server, name string) (daemonSet kubetest.Object) {
	t.Helper()
	dir := filepath.Join(deploy, "components", name)
	k := documents(t, filepath.Join(dir, "kustomization.yaml"))[0]
	for _, file := range k["resources"].([]any) {
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

// inAgent are values of the agent's container in a DaemonSet.
func inAgent(d kubetest.Object, path ...string) []any {
	at := d["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)["containers"].([]any)[0].(map[string]any)
	for _, p := range path[:len(path)-1] {
		at = at[p].(map[string]any)
	}
	list, _ := at[path[len(path)-1]].([]any)
	return list
}

// call is something that an agent may or may not do.
type call struct {
	method, path, kind string
	body               any
}

// may tries calls as an agent: all have to be allowed, or none.
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

// lost waits until an agent has not the rights of a component any more, which an
// informer of the API server takes away.
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
		t.Errorf("the agent's words: %v", args)
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
