package kubedrain_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"holdfast/internal/hosts/kube"
	"holdfast/test/kube/kubetest"
)

// Kinds of pods, by their treatment in a drain.
var kinds = []string{"plain", "plain", "plain", "set", "daemon", "orphan", "mirror", "local", "bare", "done", "done-local", "done-daemon", "mirror-local", "daemon-local"}

// pod returns a random pod.
type pod struct {
	Namespace, Name, Node, Kind string
}

func (p pod) path() string { return "/api/v1/namespaces/" + p.Namespace + "/pods/" + p.Name }

// randomPods returns up to seven pods of a node. Half of the clusters have no pod that prevents
// every drain.
func randomPods(rng *rand.Rand, node string) []pod {
	some := kinds
	if rng.IntN(2) == 0 {
		some = []string{"plain", "set", "daemon", "mirror", "done", "done-local", "daemon-local"}
	}
	var pods []pod
	for i := range rng.IntN(8) {
		namespace := []string{"default", "other"}[rng.IntN(2)]
		pods = append(pods, pod{namespace, fmt.Sprintf("%s-%d", node, i), node, some[rng.IntN(len(some))]})
	}
	return pods
}

// owners creates the owners of the pods.
func owners(t *testing.T, s *kubetest.Server) {
	t.Helper()
	s.Must(t, http.MethodPost, "/api/v1/namespaces", kubetest.Object{"metadata": kubetest.Object{"name": "other"}}, nil)
	for _, namespace := range []string{"default", "other"} {
		labels := kubetest.Object{"app": "daemon"}
		s.Must(t, http.MethodPost, "/apis/apps/v1/namespaces/"+namespace+"/daemonsets", kubetest.Object{
			"metadata": kubetest.Object{"name": "daemon"},
			"spec": kubetest.Object{"selector": kubetest.Object{"matchLabels": labels},
				"template": kubetest.Object{"metadata": kubetest.Object{"labels": labels}, "spec": kubetest.PodSpec()}},
		}, nil)
	}
}

func makePods(t *testing.T, s *kubetest.Server, pods []pod) {
	t.Helper()
	for _, p := range pods {
		s.Must(t, http.MethodPost, "/api/v1/namespaces/"+p.Namespace+"/pods", p.object(), nil)
		if strings.HasPrefix(p.Kind, "done") {
			s.Must(t, http.MethodPatch, p.path()+"/status", kubetest.Object{"status": kubetest.Object{"phase": "Succeeded"}}, nil)
		}
	}
}

func (p pod) object() kubetest.Object {
	spec := kubetest.PodSpec()
	spec["nodeName"] = p.Node
	spec["terminationGracePeriodSeconds"] = 0 // without a kubelet the API server must delete it at once
	meta := kubetest.Object{"name": p.Name}
	owner := func(kind, name string) {
		meta["ownerReferences"] = []kubetest.Object{{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "u", "controller": true}}
	}
	switch p.Kind {
	case "plain", "local", "done", "done-local", "mirror-local":
		owner("ReplicaSet", "web")
	case "set":
		owner("StatefulSet", "db")
	case "daemon", "done-daemon", "daemon-local":
		owner("DaemonSet", "daemon")
	case "orphan":
		owner("DaemonSet", "gone")
	}
	switch p.Kind {
	case "local", "done-local", "mirror-local", "daemon-local":
		spec["volumes"] = []kubetest.Object{{"name": "v", "emptyDir": kubetest.Object{}}}
	}
	switch p.Kind {
	case "mirror", "mirror-local":
		meta["annotations"] = kubetest.Object{"kubernetes.io/config.mirror": "x"}
	}
	return kubetest.Object{"metadata": meta, "spec": spec}
}

// forget removes the remaining objects of a drain.
func forget(t *testing.T, s *kubetest.Server, pods []pod) {
	t.Helper()
	for _, p := range pods {
		err := s.Do(t.Context(), http.MethodDelete, p.path(), kubetest.Object{"gracePeriodSeconds": 0}, nil)
		if err != nil && kube.Code(err) != http.StatusNotFound {
			t.Fatal(err)
		}
	}
}
