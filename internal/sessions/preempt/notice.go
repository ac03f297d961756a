// Package preempt listens where a host can hear that it goes away: the metadata
// services of Google, Amazon and Microsoft, and logind. It says so once per
// event, with the time that is left, and says so again when the danger passed.
// What to do about it is for others to decide.
package preempt

import (
	"context"
	"time"
)

// Kind is what a notice asks for.
type Kind string

// The kinds.
const (
	// Terminate: the host goes at the deadline, and what runs on it is lost.
	Terminate Kind = "terminate"
	// Rebalance: the host may go, or pauses: it should take no new session.
	Rebalance Kind = "rebalance"
	// Withdrawn: no earlier notice of any source stands any more, for example
	// because a shutdown was cancelled. Source and Reason are those of the
	// notice that was taken back last.
	Withdrawn Kind = "withdrawn"
)

// Notice is one event that a source told of.
type Notice struct {
	Source string // the source's name: gce, aws, azure, logind
	Kind   Kind
	Reason string // for people: "instance/preempted is TRUE"
	// Deadline is when the host may go; zero where the source does not say.
	// It may lie in the past.
	Deadline time.Time
	// ID is the same for the same event, and another one for another event
	// of the source.
	ID string
	// Done tells the source that nothing on this host is left to lose, so
	// that the host need not wait any longer: it lets go of logind's
	// inhibitor and approves Azure's event, where that is configured. It
	// is never nil in a notice that Run told, does no harm when called
	// twice or late, and may be called from any goroutine. It makes at most
	// one request.
	Done func(context.Context) error
}

// Source is one place where notices come from.
type Source interface {
	// Name is a short constant word for logs.
	Name() string
	// Run listens until ctx is done, with ctx's error, or until it cannot
	// go on; it may be called again then. Whenever it has heard the state
	// of things it calls stand with all notices that stand now, also with
	// none and also with the same ones as before; not hearing anything is no
	// reason to call it. It fills in Kind, Reason, Deadline, ID and, where it has
	// one, Done. It may call stand from several goroutines.
	Run(ctx context.Context, stand func(...Notice)) error
}
