package session

import (
	"context"
	"time"

	"holdfast"
)

// Reporter learns what happens to the sessions of a node. Any goroutine may call its
// methods. *events.History implements it.
type Reporter interface {
	// Emit adds an event. It does not wait: it is called with locks held.
	Emit(holdfast.SessionEvent)
	// Ended keeps how epochs of sessions ended, unless that is known. When it returns,
	// the endings survive the agent.
	Ended(...holdfast.Ending)
	// Knows reports whether the ending of an epoch is kept.
	Knows(holdfast.SessionKey, holdfast.Epoch) bool
}

// noReporter is a Reporter that keeps nothing.
type noReporter struct{}

func (noReporter) Emit(holdfast.SessionEvent)                     {}
func (noReporter) Ended(...holdfast.Ending)                       {}
func (noReporter) Knows(holdfast.SessionKey, holdfast.Epoch) bool { return true }

// emit reports an event of a claimed session.
func (m *Manager) emit(t holdfast.EventType, o holdfast.Owner, took holdfast.Millis) {
	m.deps.Reporter.Emit(holdfast.SessionEvent{Type: t, Key: o.Key, Epoch: o.Epoch, Template: o.Template, Took: took})
}

// cause is why a session ends, and which component has decided that. In the zero value its
// container has ended by itself.
type cause struct {
	reason holdfast.EndReason
	by     holdfast.EndedBy
	text   string
}

// fenced is the cause of the end of all sessions of a node that may have lost its lease.
var fenced = cause{reason: holdfast.EndFenced, by: holdfast.ByFence}

// ending is what an entry knows about its end. Manager.mu guards it.
type ending struct {
	cause
	at       time.Time
	reported bool
	learned  chan struct{} // closed when learnEnd has reported the end; nil if it was not needed
	memory   memory
	peak     int64 // bytes, when the container died
	oomKills int   // likewise
}

// endingLocked returns how the entry has ended.
func (e *entry) endingLocked() holdfast.Ending {
	o := e.owner
	return holdfast.Ending{
		Key: e.key, Epoch: o.Epoch, Template: e.template.Name, ContainerID: o.ContainerID, ReadyAt: o.ReadyAt,
		At: e.end.at, Reason: e.end.reason, By: e.end.by, Error: e.end.text, OOMKills: e.end.oomKills,
	}
}

// reportEnds reports how sessions have ended whose containers are dead. For those that
// ended by themselves it first asks the engine, in goroutines of its own: the release does
// not wait for that, only the removal of the container does. If this agent is killed before
// it has reported the end, the next agent still finds the container and reports it.
func (m *Manager) reportEnds(dead []*entry) {
	var known []holdfast.Ending
	m.mu.Lock()
	for _, e := range dead {
		switch {
		case e.end.reported:
		case e.end.reason != "":
			known = append(known, e.endingLocked())
		default:
			learned := make(chan struct{})
			if m.tasks.Go(func(ctx context.Context) { defer close(learned); m.learnEnd(ctx, e) }) {
				e.end.learned = learned
			}
		}
		e.end.reported = true
	}
	m.mu.Unlock()
	if len(known) > 0 {
		m.deps.Reporter.Ended(known...)
	}
}

// removeReported queues the container of an ended session for removal, once its end is
// reported.
func (m *Manager) removeReported(e *entry) {
	m.mu.Lock()
	learned := e.end.learned
	m.mu.Unlock()
	if learned == nil {
		m.remove(e.route.ContainerID)
		return
	}
	m.tasks.Go(func(ctx context.Context) {
		select {
		case <-learned:
			m.remove(e.route.ContainerID)
		case <-ctx.Done():
		}
	})
}
