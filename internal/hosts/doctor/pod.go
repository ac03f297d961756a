package doctor

import (
	"cmp"
	"strings"

	"holdfast/internal/platform/engine"
)

// Pod is a container's place in a Kubernetes cluster.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	Container string `json:"container,omitempty"` // its name in the pod; "" for the pod as a whole
	// Workload is the controller that creates the pod, such as Deployment/web, by the
	// labels of Kubernetes' controllers. It is "" if there is none or if the labels do
	// not identify it.
	Workload string `json:"workload,omitempty"`
}

// Labels that the kubelet sets on containers, for every runtime.
const (
	podNameLabel      = "io.kubernetes.pod.name"
	podNamespaceLabel = "io.kubernetes.pod.namespace"
	podUIDLabel       = "io.kubernetes.pod.uid"
	podContainerLabel = "io.kubernetes.container.name"
)

// podOf reads a container's labels. It returns nil if the container is in no pod.
func podOf(c engine.Container) *Pod {
	p := &Pod{Namespace: c.Labels[podNamespaceLabel], Name: c.Labels[podNameLabel], UID: c.Labels[podUIDLabel], Container: c.Labels[podContainerLabel]}
	if p.Name == "" || p.UID == "" {
		return nil
	}
	return p
}

// podUID returns the uid of the pod that a control group belongs to, "" for none. The
// kubelet's cgroupfs driver uses names such as kubepods/burstable/pod<uid>. Its systemd
// driver uses kubepods-burstable-pod<uid>.slice, with _ for each - of the uid.
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

// isUID reports whether text is a UUID, or the 32 hexadecimal digits of a static pod,
// which the kubelet reads from a file.
func isUID(text string) bool {
	digits := strings.ReplaceAll(text, "-", "")
	return len(digits) == 32 && strings.Trim(digits, "0123456789abcdef") == "" && (len(text) == 32 || len(text) == 36)
}

// pod returns the pod of a subject: that of its container, or else that of its control
// group.
func (n Namer) pod(containerID, group string) *Pod {
	if c, ok := n.containers[containerID]; ok {
		if p := podOf(c); p != nil {
			p.Workload = n.workload(p)
			return p
		}
	}
	uid := podUID(group)
	if uid == "" {
		return nil
	}
	for _, c := range n.containers {
		if p := podOf(c); p != nil && p.UID == uid {
			p.Container, p.Workload = "", n.workload(p)
			return p
		}
	}
	return &Pod{UID: uid} // the runtime has forgotten the pod by now
}

// workload returns the workload of a pod. The runtime keeps the pod's labels at the pod's
// sandbox.
func (n Namer) workload(p *Pod) string {
	for _, c := range n.containers {
		if c.Labels[podUIDLabel] != p.UID {
			continue
		}
		if w := workloadOf(p.Name, c.Labels); w != "" {
			return short(w)
		}
	}
	return ""
}

// workloadOf derives a pod's workload from its labels and its name. The controller makes
// the pod's name from its own: a Deployment appends the template's hash and five letters,
// a DaemonSet five letters, a StatefulSet a number.
func workloadOf(pod string, labels map[string]string) string {
	owner := pod[:max(strings.LastIndex(pod, "-"), 0)]
	job := cmp.Or(labels["batch.kubernetes.io/job-name"], labels["job-name"])
	hash, ofSet := labels["pod-template-hash"], labels["controller-revision-hash"] != ""
	switch {
	case owner == "":
		return ""
	case hash != "" && strings.HasSuffix(owner, "-"+hash):
		return "Deployment/" + strings.TrimSuffix(owner, "-"+hash)
	case job != "":
		return "Job/" + job
	case labels["statefulset.kubernetes.io/pod-name"] == pod:
		return "StatefulSet/" + owner
	case ofSet && labels["pod-template-generation"] != "":
		return "DaemonSet/" + owner
	}
	return ""
}
