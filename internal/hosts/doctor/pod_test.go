package doctor

import (
	"testing"

	"holdfast/internal/platform/engine"
)

func TestPodOfGroup(t *testing.T) {
	const (
		uid = "0a1b2c3d-1111-2222-3333-444455556666"
		id  = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	)
	under := "0a1b2c3d_1111_2222_3333_444455556666"
	for group, want := range map[string]string{
		"/kubepods/burstable/pod" + uid + "/" + id: uid,
		"/kubepods/pod" + uid:                      uid,
		"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + under + ".slice/cri-containerd-" + id + ".scope":                               uid,
		"/kubepods.slice/kubepods-pod" + under + ".slice":                                                                                                  uid,
		"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod" + under + ".slice/crio-" + id + ".scope": uid,
		"/kubepods/besteffort/pod0123456789abcdef0123456789abcdef":                                                                                         "0123456789abcdef0123456789abcdef",
		"/kubepods/burstable":          "",
		"/system.slice/podman.service": "",
		"/podabc":                      "",
	} {
		if got := podUID(group); got != want {
			t.Errorf("%s: %q, want %q", group, got, want)
		}
	}
	n := Namer{containers: map[string]engine.Container{id: {ID: id, Labels: map[string]string{
		podNameLabel: "web-1", podNamespaceLabel: "shop", podUIDLabel: uid, podContainerLabel: "nginx"}}}}
	if p := n.pod(id, "/x"); p == nil || *p != (Pod{Namespace: "shop", Name: "web-1", UID: uid, Container: "nginx"}) {
		t.Errorf("by its container: %+v", p)
	}
	if p := n.pod("", "/kubepods/pod"+uid); p == nil || *p != (Pod{Namespace: "shop", Name: "web-1", UID: uid}) {
		t.Errorf("by its control group: %+v", p)
	}
	if p := n.pod("", "/system.slice/x.service"); p != nil {
		t.Errorf("outside a pod: %+v", p)
	}
}

// The workload is derived from the labels at the pod's sandbox, as controllers set them.
func TestWorkload(t *testing.T) {
	for _, c := range []struct {
		pod    string
		labels map[string]string
		want   string
	}{
		{"web-6d4b75cb6d-x2x9z", map[string]string{"app": "web", "pod-template-hash": "6d4b75cb6d"}, "Deployment/web"},
		{"a-b-6d4b75cb6d-x2x9z", map[string]string{"pod-template-hash": "6d4b75cb6d"}, "Deployment/a-b"},
		{"db-0", map[string]string{"statefulset.kubernetes.io/pod-name": "db-0", "controller-revision-hash": "db-7f"}, "StatefulSet/db"},
		{"agent-x2x9z", map[string]string{"controller-revision-hash": "7f", "pod-template-generation": "1"}, "DaemonSet/agent"},
		{"nightly-29000-x2x9z", map[string]string{"batch.kubernetes.io/job-name": "nightly-29000", "job-name": "nightly-29000"}, "Job/nightly-29000"},
		{"old-x2x9z", map[string]string{"job-name": "old"}, "Job/old"},
		{"copy-x2x9z", map[string]string{"pod-template-hash": "6d4b75cb6d"}, ""},
		{"bare", map[string]string{"app": "x", "controller-revision-hash": "1", "pod-template-generation": "1"}, ""},
		{"bare-pod", nil, ""},
	} {
		sandbox := map[string]string{podNameLabel: c.pod, podNamespaceLabel: "shop", podUIDLabel: "u"}
		for k, v := range c.labels {
			sandbox[k] = v
		}
		n := Namer{containers: map[string]engine.Container{
			"box": {ID: "box", Labels: sandbox},
			"c":   {ID: "c", Labels: map[string]string{podNameLabel: c.pod, podNamespaceLabel: "shop", podUIDLabel: "u", podContainerLabel: "main"}},
		}}
		if p := n.pod("c", "/x"); p == nil || p.Workload != c.want || p.Container != "main" {
			t.Errorf("%s %v: %+v, want %s", c.pod, c.labels, p, c.want)
		}
	}
}
