// Package experiment assigns sessions or nodes of a fleet to the two arms of an experiment,
// compares the spin-ups of both arms, and stops an experiment whose treatment is worse
// (docs/adr/experiments.md).
package experiment

import (
	"crypto/sha256"
	"encoding/binary"
	"math"

	"holdfast"
	"holdfast/internal/hosts/spinup"
)

// What has an arm.
const (
	BySession = "session"
	ByNode    = "node"
)

// Spec is the configuration of one experiment, the same on all nodes.
type Spec struct {
	Name string
	By   string // BySession or ByNode
	// Template and With are for sessions: those of Template boot from With on the
	// treatment arm. Sessions boot from With in no other case.
	Template, With string
	Share          float64 // percent on the treatment arm, over 0 and at most 100
}

// Arm returns the arm of a session's key or of a node's id. It depends on nothing but the
// experiment's name, its share and id, and a larger share only moves ids to the treatment
// arm: the first 64 bits of a SHA-256, as a fraction, are below the share.
func (s Spec) Arm(id string) holdfast.Arm {
	sum := sha256.Sum256([]byte(s.Name + "\x00" + id))
	if float64(binary.BigEndian.Uint64(sum[:8]))/math.MaxUint64 < s.Share/100 {
		return holdfast.Treatment
	}
	return holdfast.Control
}

// armOf returns the arm of a spin-up on node, "" if it is not part of the experiment.
func (s Spec) armOf(r spinup.Record, node holdfast.NodeID) holdfast.Arm {
	switch {
	case s.By == ByNode:
		return s.Arm(string(node))
	case r.Kind != spinup.ForSession:
		return ""
	case r.Template == s.With:
		return holdfast.Treatment
	case r.Template == s.Template:
		return holdfast.Control
	}
	return ""
}
