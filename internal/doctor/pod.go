package doctor

import (
	"strings"

	"holdfast/internal/engine"
)

// Pod is a container's place in a Kubernetes cluster.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	Container string `json:"container,omitempty"` // its name in the pod; "" for the pod as a whole
}

// Labels that the kubelet gives containers, whatever the runtime.
const (
	podNameLabel      = "io.kubernetes.pod.name"
	podNamespaceLabel = "io.kubernetes.pod.namespace"
	podUIDLabel       = "io.kubernetes.pod.uid"
	podContainerLabel = "io.kubernetes.container.name"
)

// podOf reads a container's labels; nil: it is in no pod.
func podOf(c engine.Container) *Pod {
	p := &Pod{Namespace: c.Labels[podNamespaceLabel], Name: c.Labels[podNameLabel], UID: c.Labels[podUIDLabel], Container: c.Labels[podContainerLabel]}
	if p.Name == "" || p.UID == "" {
		return nil
	}
	return p
}

// podUID finds the uid of the pod that a control group belongs to, "" for none. The
// kubelet's driver cgroupfs names it kubepods/burstable/pod<uid>, and its driver systemd
// kubepods-burstable-pod<uid>.slice, with _ for the uid's -.
func podUID(group string) string {
	for part := range strings.SplitSeq(group, "/") {
		name, systemd := strings.CutSuffix(part, ".slice")
		if systemd {
			name = name[strings.LastIndex(name, "-")+1:]
		}
		uid, ok := strings.CutPrefix(name, "pod")
		if !ok {
			continue
		}
		if systemd {
			uid = strings.ReplaceAll(uid, "_", "-")
		}
		if isUID(uid) {
			return uid
		}
	}
	return ""
}

// isUID reports whether text is a UUID, or 32 hexadecimal digits, which pods that the
// kubelet reads from files have.
func isUID(text string) bool {
	digits := strings.ReplaceAll(text, "-", "")
	return len(digits) == 32 && strings.Trim(digits, "0123456789abcdef") == "" && (len(text) == 32 || len(text) == 36)
}

// pod is the pod of a subject in a control group: its container's, or that of the group
// above.
func (n Namer) pod(containerID, group string) *Pod {
	if c, ok := n.containers[containerID]; ok {
		if p := podOf(c); p != nil {
			return p
		}
	}
	uid := podUID(group)
	if uid == "" {
		return nil
	}
	for _, c := range n.containers {
		if p := podOf(c); p != nil && p.UID == uid {
			p.Container = ""
			return p
		}
	}
	return &Pod{UID: uid} // what the runtime has forgotten by now
}
