package events

import (
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/platform/metric"
)

// History is the events and the endings of a node's sessions. Any goroutine may call its
// methods.
type History struct {
	*Log
	*Endings
	node  holdfast.NodeID
	ended *prometheus.CounterVec // by reason
}

// Open returns what earlier agents of a node have kept in the directory dir.
func Open(dir string, node holdfast.NodeID, r metric.Registry, log *slog.Logger) *History {
	h := &History{Log: OpenLog(dir, node, log), Endings: OpenEndings(dir, log), node: node,
		ended: r.CounterVec("holdfast_session_ends_total", "Epochs of sessions that have ended on this node, or (node-lost) whose loss it has seen, by reason.", "reason"),
	}
	for _, reason := range holdfast.EndReasons() {
		metric.Start(h.ended, string(reason))
	}
	metric.GaugeFunc(r, "holdfast_session_event_readers", "Open streams of this node's session events.", h.Readers)
	return h
}

// Ended keeps how epochs of sessions ended, and emits their last events. It leaves out what
// is known. An ending without a node is this node's.
func (h *History) Ended(some ...holdfast.Ending) {
	for i := range some {
		if some[i].Node == "" {
			some[i].Node = h.node
		}
	}
	for _, e := range h.Add(some...) {
		h.ended.WithLabelValues(string(e.Reason)).Inc()
		short := e
		short.Log, short.Memory = "", nil
		h.Emit(holdfast.SessionEvent{Type: typeOf(e), At: e.At, Key: e.Key, Epoch: e.Epoch, Template: e.Template, Ending: &short})
	}
}

// NodeLost keeps that a session ended with the lease of its node, as this node has seen it.
func (h *History) NodeLost(o holdfast.Owner) {
	h.Ended(holdfast.Ending{Key: o.Key, Node: o.Node, Epoch: o.Epoch, Template: o.Template, At: time.Now().UTC(),
		Reason: holdfast.EndNodeLost, By: holdfast.ByLease, SeenBy: h.node})
}

// Knows reports whether the ending of an epoch is kept, by the epoch's own node.
func (h *History) Knows(key holdfast.SessionKey, epoch holdfast.Epoch) bool { return h.Has(key, epoch) }

// typeOf returns the type of the last event of an epoch.
func typeOf(e holdfast.Ending) holdfast.EventType {
	switch {
	case e.Reason == holdfast.EndSuspended && e.Error == "":
		return holdfast.EventSuspended
	case e.Reason == holdfast.EndMoved:
		return holdfast.EventMoved
	}
	return holdfast.EventEnded
}
