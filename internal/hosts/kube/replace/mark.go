package replace

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"holdfast/internal/hosts/kube"
)

// MarkAnnotation is the annotation of a node that is being replaced.
const MarkAnnotation = "holdfast.dev/replace"

// Phase is the progress of a node.
type Phase string

// The phases, in their order.
const (
	Waiting      Phase = "waiting"      // cordoned: it waits for its turn
	Provisioning Phase = "provisioning" // a command makes a new machine
	Joining      Phase = "joining"      // the new machine becomes a ready node
	Preparing    Phase = "preparing"    // a command prepares the disk of the new node
	Surging      Phase = "surging"      // more pods become ready elsewhere
	Draining     Phase = "draining"     // pods are evicted, and become ready elsewhere
	Drained      Phase = "drained"      // only pods that are deleted with it remain
	Deleting     Phase = "deleting"     // the command that deletes the machine runs
	Done         Phase = "done"
)

// rank returns the position of a phase in their order, -1 for "".
func (p Phase) rank() int {
	return slices.Index([]Phase{Waiting, Provisioning, Joining, Preparing, Surging, Draining, Drained, Deleting, Done}, p)
}

// early reports whether the node may still have its pods.
func (p Phase) early() bool { return p.rank() < Drained.rank() }

// Mark records what a run has done to a node.
type Mark struct {
	Run    string    `json:"run"`
	Holder string    `json:"holder"` // the process that runs the replacement
	Phase  Phase     `json:"phase"`
	Since  time.Time `json:"since"`
	// Cordoned: the node was cordoned before the run.
	Cordoned bool `json:"cordoned,omitempty"`

	// Newest is the creation time of the newest node when Provisioning began: the
	// new node is newer.
	Newest time.Time `json:"newest,omitzero"`
	Made   Phase     `json:"made,omitempty"` // the last of Provisioning, Joining and Preparing that is complete
	New    string    `json:"new,omitempty"`  // the new node, once it is ready
}

// MarkOf returns a node's mark, nil if it has none.
func MarkOf(n kube.Node) (*Mark, error) {
	text, ok := n.Meta.Annotations[MarkAnnotation]
	if !ok {
		return nil, nil
	}
	var m Mark
	if err := json.Unmarshal([]byte(text), &m); err != nil || m.Run == "" {
		return nil, fmt.Errorf("node %s: annotation %s cannot be read: %q", n.Meta.Name, MarkAnnotation, text)
	}
	return &m, nil
}

// over reports whether the run has ended for the node.
func (m Mark) over() bool { return m.Phase == Done }

// patch returns the patch that sets the mark and cordons the node.
func (m Mark) patch() (*kube.NodePatch, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	return &kube.NodePatch{Annotations: map[string]*string{MarkAnnotation: new(string(b))}, Unschedulable: new(true)}, nil
}

// unpatch returns the patch that removes the mark. With uncordon it also removes
// the cordon if the run had set it.
func (m Mark) unpatch(uncordon bool) *kube.NodePatch {
	p := &kube.NodePatch{Annotations: map[string]*string{MarkAnnotation: nil}}
	if uncordon && !m.Cordoned {
		p.Unschedulable = new(false)
	}
	return p
}
