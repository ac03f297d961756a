package replace

import (
	"errors"

	"holdfast"
	"holdfast/internal/hosts/kube"
)

// Treatment is what becomes of a pod of a node that is drained.
type Treatment string

// The treatments.
const (
	Evict  Treatment = "evict"
	Leave  Treatment = "leave"  // it goes with the node
	Refuse Treatment = "refuse" // the node is not drained because of it
)

// Rules are what a drain may do to pods.
type Rules struct {
	LocalData bool // pods with emptyDir volumes are evicted, and the data is lost
	Unmanaged bool // so are pods that nobody makes anew
}

// Reasons, as people read them. WhyLocal is one that Rules.LocalData overrides.
const (
	whyDaemonSet = "its DaemonSet keeps it on the node"
	whyMirror    = "the kubelet runs it from a file"
	WhyLocal     = "it has local data (emptyDir), which would be lost"
	whyUnmanaged = "nothing would make it anew"
	whyOrphan    = "its DaemonSet is gone"
)

// Treat says what becomes of a pod, and why, by the rules of `kubectl drain
// --ignore-daemonsets`, in their order. daemonSet is what the API server says of the
// DaemonSet of a pod that has one and has not finished: nil where it is there.
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
