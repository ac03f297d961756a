package session

import (
	"math"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
)

const (
	// restIntervals is how many publish intervals a node's record stays as it is while
	// nothing changes. With a write in each interval, a thousand nodes at rest caused
	// nearly all of the writes and events of their store.
	restIntervals = 5
	// figureStep is the change of a figure, from 0 to 1, that is written at once. Nodes are
	// chosen by a sum of such figures.
	figureStep = 0.1
)

// record is the last one that a node has written; the zero value if it has to be written.
type record struct {
	lease store.LeaseID
	node  holdfast.Node
	at    time.Time
}

// due reports whether the node's record has to be written.
func (r *record) due(id store.LeaseID, n holdfast.Node, now time.Time, interval time.Duration) bool {
	return r.lease != id || now.Sub(r.at) >= restIntervals*interval || differs(r.node, n)
}

// differs reports whether a reader of the record would choose by n otherwise than by o.
func differs(o, n holdfast.Node) bool {
	memory := float64(n.Memory.Available-o.Memory.Available) / float64(max(n.Memory.Total, 1))
	for _, change := range []float64{n.CPULoad - o.CPULoad, n.Pressure - o.Pressure, memory} {
		if math.Abs(change) >= figureStep {
			return true
		}
	}
	o.CPULoad, o.Pressure, o.Memory.Available, o.SeenAt = n.CPULoad, n.Pressure, n.Memory.Available, n.SeenAt
	o.Lease = n.Lease
	return o != n
}
