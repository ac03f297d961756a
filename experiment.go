package holdfast

import "time"

// Arm is the side of an experiment that a session or a node is on.
type Arm string

// The arms of an experiment.
const (
	Control   Arm = "control"   // unchanged
	Treatment Arm = "treatment" // with what is tried
)

// ExperimentState is what an experiment does.
type ExperimentState string

// The states of an experiment.
const (
	ExperimentPending ExperimentState = "pending" // its record was not read yet: all are on the control arm
	ExperimentRunning ExperimentState = "running"
	ExperimentStopped ExperimentState = "stopped" // for good: all are on the control arm
)

// Experiment is an experiment of the fleet as one node sees it.
type Experiment struct {
	Name string `json:"name"`
	// By is session or node: what has an arm.
	By string `json:"by"`
	// Template and With are for sessions: those of Template boot from With on the
	// treatment arm.
	Template string          `json:"template,omitempty"`
	With     string          `json:"with,omitempty"`
	Share    float64         `json:"share"` // on the treatment arm, percent, over 0 and at most 100
	State    ExperimentState `json:"state"`
	Begun    time.Time       `json:"begun,omitzero"`
	Stopped  time.Time       `json:"stopped,omitzero"`
	Why      string          `json:"why,omitempty"` // it was stopped
	// NodeArm is the arm of the answering node, for an experiment by node that runs.
	NodeArm Arm `json:"node_arm,omitempty"`
}
