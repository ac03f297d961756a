// Package preempt reads notices that this host will be terminated or interrupted,
// from the metadata services of Google, Amazon and Microsoft, and from logind. Run
// reports each event once, with its deadline, and reports when no event remains. A
// Responder drains the node.
package preempt

import (
	"context"
	"time"
)

// Kind is the kind of a notice.
type Kind string

// The kinds.
const (
	// Terminate: the host ends at the deadline, with everything that runs on it.
	Terminate Kind = "terminate"
	// Rebalance: the host may be terminated, or pauses. It should accept no new session.
	Rebalance Kind = "rebalance"
	// Withdrawn: no earlier notice of any source is valid any more, for example
	// because a shutdown was cancelled. Source and Reason are those of the
	// notice that was withdrawn last.
	Withdrawn Kind = "withdrawn"
)

// Notice is one event that a source reported.
type Notice struct {
	Source string // the source's name: gce, aws, azure, logind
	Kind   Kind
	Reason string // for logs: "instance/preempted is TRUE"
	// Deadline is when the host may end; zero if the source does not report it.
	// It may lie in the past.
	Deadline time.Time
	// ID identifies the event among those of the source.
	ID string
	// Done tells the source that the host is drained and need not wait any
	// longer. It releases logind's inhibitor, and approves Azure's event if that
	// is configured. It is never nil in a notice that Run reports. It is
	// idempotent, has no effect after the event, and may be called from any
	// goroutine. It makes at most one request.
	Done func(context.Context) error
}

// Source is one source of notices.
type Source interface {
	// Name is a short constant word for logs.
	Name() string
	// Run reads notices until ctx is done or an error occurs, and returns that
	// error. It may be called again then. Whenever Run has read the state, it calls
	// report with all notices that are valid now, also if there are none or they are
	// unchanged. It does not call report after a failed read. It sets Kind, Reason,
	// Deadline, ID and, if the source can be told, Done. It may call report from
	// several goroutines.
	Run(ctx context.Context, report func(...Notice)) error
}
