package holdfast

import (
	"context"
	"slices"
	"time"
)

// WakeReason is why a session that sleeps continues.
type WakeReason string

// The reasons.
const (
	WokenByRequest   WakeReason = "request"   // a request, a new connection, or a start by hand
	WokenByWebSocket WakeReason = "websocket" // data on an open WebSocket
	WokenByStream    WakeReason = "stream"    // data on another upgraded connection
	WokenByForward   WakeReason = "forward"   // data on a connection of `session forward`
	WokenByExec      WakeReason = "exec"      // a command that is to run in the container
	WokenByTimer     WakeReason = "timer"     // a time that was set, or one of its template
)

// WakeReasons returns all reasons.
func WakeReasons() []WakeReason {
	return []WakeReason{WokenByRequest, WokenByWebSocket, WokenByStream, WokenByForward, WokenByExec, WokenByTimer}
}

type wakeReasonKey struct{}

// WithWakeReason returns a context for requests for a session. If the session sleeps or is
// suspended, it continues for that reason.
func WithWakeReason(ctx context.Context, by WakeReason) context.Context {
	return context.WithValue(ctx, wakeReasonKey{}, by)
}

// WakeReasonOf returns the reason of a context, WokenByRequest if it has none.
func WakeReasonOf(ctx context.Context) WakeReason {
	if by, ok := ctx.Value(wakeReasonKey{}).(WakeReason); ok && slices.Contains(WakeReasons(), by) {
		return by
	}
	return WokenByRequest
}

// MaxWake is how far in the future the time may be that is set for a session to wake.
const MaxWake = 366 * 24 * time.Hour

// FirstTime returns the earlier of two times. The zero time is none.
func FirstTime(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Wakes returns when the session resumes by itself; the zero time: never.
func (s Suspended) Wakes() time.Time { return FirstTime(s.WakeAt, s.WakeCron) }

// Sleep describes how a session sleeps whose container is frozen while it is not used. For a
// session that was suspended it tells what resumed it.
type Sleep struct {
	Since  time.Time `json:"since,omitzero"`   // it has slept since; zero: it does not sleep
	Memory int64     `json:"memory,omitempty"` // bytes that its container keeps in memory while it sleeps
	Sleeps int       `json:"sleeps"`           // times that it has slept since this node's agent has it
	// WokenAt and WokenBy tell when it last continued, and why.
	WokenAt time.Time  `json:"woken_at,omitzero"`
	WokenBy WakeReason `json:"woken_by,omitempty"`
}

// Asleep reports whether the session sleeps. It is false for nil.
func (s *Sleep) Asleep() bool { return s != nil && !s.Since.IsZero() }

// Activity is what a connection tells its session, if the session sleeps although it has
// connections, when they carry no data. Its methods do not block, and any goroutine may
// call them.
type Activity interface {
	// ByData is called once, when only the data of the connection counts from now on. kept
	// means that the connection stays open while the session is suspended. Otherwise, a
	// session that is suspended to sleep is used until the connection ends.
	ByData(kept bool)
	// Data is called before data of the connection is passed on, in either direction. It
	// wakes the session. If it returns false, the session is being suspended, and the
	// container may not read the data: the caller keeps it for the session's next server.
	Data(by WakeReason) bool
	// Control is called before a WebSocket's Ping or Pong is passed on, which is no data.
	// If it returns false, the session sleeps and cannot answer: the caller does.
	Control() bool
	// Suspending returns nil if the session is not being suspended, and otherwise a channel
	// that is closed when its container is dead.
	Suspending() (dead <-chan struct{})
}
