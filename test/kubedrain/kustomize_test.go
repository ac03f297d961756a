package kubedrain_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"holdfast/test/kube/kubetest"
)

const deploy = "../../deploy/kubernetes"

// build does what `kustomize build` and `kubectl apply -k` do, with Holdfast's manifests in one
// directory and a user's kustomization in another.
func build(t *testing.T, dir, users string) resmap.ResMap {
	t.Helper()
	disk := filesys.MakeFsInMemory()
	err := filepath.WalkDir(deploy, func(file string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		in, err := filepath.Rel(deploy, file)
		if err != nil {
			return err
		}
		return disk.WriteFile(filepath.Join("/holdfast", in), text)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := disk.WriteFile("/mine/kustomization.yaml", []byte(users)); err != nil {
		t.Fatal(err)
	}
	all, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(disk, dir)
	if err != nil {
		t.Fatalf("kustomize build %s: %v", dir, err)
	}
	return all
}

// plurals has the kinds of the manifests, with their names in API paths.
var plurals = map[string]string{
	"Namespace": "namespaces", "ServiceAccount": "serviceaccounts", "DaemonSet": "daemonsets",
	"ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings", "Role": "roles", "RoleBinding": "rolebindings",
	"ValidatingAdmissionPolicy": "validatingadmissionpolicies", "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}

// apply applies all objects as `kubectl apply --server-side` does; unknown fields are an error.
// It returns their names, and the agent's container.
func apply(t *testing.T, s *kubetest.Server, all resmap.ResMap) (names []string, agent map[string]any) {
	t.Helper()
	for _, r := range all.Resources() {
		o, err := r.Map()
		if err != nil {
			t.Fatal(err)
		}
		prefix := "/api/v1"
		if v := r.GetApiVersion(); v != "v1" {
			prefix = "/apis/" + v
		}
		kind, ok := plurals[r.GetKind()]
		if !ok {
			t.Fatalf("kind %s", r.GetKind())
		}
		if ns := r.GetNamespace(); ns != "" {
			if ns != "holdfast" {
				t.Errorf("%s %s is in namespace %s", r.GetKind(), r.GetName(), ns)
			}
			prefix += "/namespaces/" + ns
		}
		path := fmt.Sprintf("%s/%s/%s?fieldManager=test&force=true&fieldValidation=Strict", prefix, kind, r.GetName())
		var made map[string]any
		if err := s.Client().Raw(t.Context(), http.MethodPatch, path, "application/apply-patch+yaml", o, &made); err != nil {
			t.Fatalf("%s %s: %v", r.GetKind(), r.GetName(), err)
		}
		names = append(names, r.GetKind()+" "+r.GetName())
		if r.GetKind() == "DaemonSet" {
			agent = made["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
		}
	}
	slices.Sort(names)
	return names, agent
}

// The API server accepts the output of kustomize: for the manifests alone, and in a user's
// kustomization with each component and with all.
func TestKustomize(t *testing.T) {
	s := cluster(t)
	names, agent := apply(t, s, build(t, "/holdfast", "resources: [../holdfast]\n"))
	if len(names) != len(slices.Compact(slices.Clone(names))) || !slices.Contains(names, "DaemonSet holdfast-agent") {
		t.Errorf("it makes %v", names)
	}
	args := func(spec map[string]any) []string {
		var list []string
		for _, a := range spec["containers"].([]any)[0].(map[string]any)["args"].([]any) {
			list = append(list, a.(string))
		}
		return list
	}
	before := args(agent)
	entries, err := os.ReadDir(filepath.Join(deploy, "components"))
	if err != nil {
		t.Fatal(err)
	}
	all := []string{}
	for _, e := range entries {
		all = append(all, "../holdfast/components/"+e.Name())
	}
	if len(all) < 3 {
		t.Errorf("components are %v", all)
	}
	sets := [][]string{all}
	for _, c := range all {
		sets = append(sets, []string{c})
	}
	for _, set := range sets {
		more, agent := apply(t, s, build(t, "/mine", "resources: [../holdfast]\ncomponents: ["+strings.Join(set, ", ")+"]\n"))
		if len(more) < len(names) { // a component may only change the agent
			t.Errorf("%v: it makes %v", set, more)
		}
		after := args(agent)
		if len(after) != len(before)+len(set) || !slices.Equal(after[:len(before)], before) {
			t.Errorf("%v: the arguments of the agent are %v, before they were %v", set, after, before)
		}
		if _, host := agent["hostNetwork"]; host != slices.Contains(set, "../holdfast/components/preemption") {
			t.Errorf("%v: the host's network: %v", set, host)
		}
	}
}
