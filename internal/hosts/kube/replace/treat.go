package replace

import (
	"errors"

	"holdfast"
	"holdfast/internal/hosts/kube"
)

// Treatment is what a drain does with a pod.
type Treatment string

// The treatments.
const (
	Evict  Treatment = "evict"
	Leave  Treatment = "leave"  // it is deleted with the node
	Refuse Treatment = "refuse" // it forbids the drain of the node
)

// Rules are the rules of a drain for pods.
type Rules struct {
	LocalData bool // pods with emptyDir volumes are evicted, and the data is lost
	Unmanaged bool // pods without a controller are evicted, and not recreated
}

// Reasons for display. Rules.LocalData overrides WhyLocal.
const (
	whyDaemonSet = "its DaemonSet keeps it on the node"
	whyMirror    = "the kubelet runs it from a file"
	WhyLocal     = "it has local data (emptyDir), which would be lost"
	whyUnmanaged = "no controller would recreate it"
	whyOrphan    = "its DaemonSet is gone"
)

// Treat returns the treatment of a pod and its reason, by the rules of `kubectl
// drain --ignore-daemonsets`, in their order. daemonSet is the API server's error
// for the DaemonSet of an unfinished pod, nil if it exists.
func (r Rules) Treat(p kube.Pod, daemonSet error) (Treatment, string) {
	why := ""
	if p.OfDaemonSet() && !p.Finished() {
		switch {
		case daemonSet == nil:
			return Leave, whyDaemonSet
		case !errors.Is(daemonSet, holdfast.ErrNotFound):
			return Refuse, "its DaemonSet: " + daemonSet.Error()
		case !r.Unmanaged:
			return Refuse, whyOrphan
		}
		why = whyOrphan
	}
	switch {
	case p.Mirror():
		return Leave, whyMirror
	case p.Finished():
		return Evict, ""
	case p.LocalData() && !r.LocalData:
		return Refuse, WhyLocal
	case p.Meta.Controlling() == nil && !r.Unmanaged:
		return Refuse, whyUnmanaged
	case p.LocalData():
		why = WhyLocal
	case p.Meta.Controlling() == nil:
		why = whyUnmanaged
	}
	return Evict, why
}
