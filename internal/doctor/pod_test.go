package doctor

import (
	"testing"

	"holdfast/internal/engine"
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
	if p := n.pod(id, "/x"); p == nil || *p != (Pod{"shop", "web-1", uid, "nginx"}) {
		t.Errorf("by the container: %+v", p)
	}
	if p := n.pod("", "/kubepods/pod"+uid); p == nil || *p != (Pod{"shop", "web-1", uid, ""}) {
		t.Errorf("by the group above it: %+v", p)
	}
	if p := n.pod("", "/system.slice/x.service"); p != nil {
		t.Errorf("of no pod: %+v", p)
	}
}
