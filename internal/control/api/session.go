package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"

	"holdfast"
)

// SessionService starts, shows and ends sessions.
type SessionService interface {
	// Sessions lists all sessions, by key.
	Sessions(ctx context.Context) ([]Session, error)

	// Session returns one session, also of another node: its Node decides which
	// node answers a request. holdfast.ErrNotFound.
	Session(ctx context.Context, key holdfast.SessionKey) (Session, error)

	// StartSession returns when the session is ready, also if it was ready
	// before. A suspended session gets its memory back; its Memory says so. With
	// a template of "" the agent chooses. *holdfast.BootError.
	StartSession(ctx context.Context, key holdfast.SessionKey, template string) (Session, error)

	// StopSession returns when the container is seen dead and the record is
	// released. A container that could not be killed is in the report and is not
	// an error. holdfast.ErrNotFound.
	StopSession(ctx context.Context, key holdfast.SessionKey) (holdfast.KillReport, error)

	// SuspendSession saves the session's memory and stops the session; the next
	// connect restores it. An error that wraps holdfast.ErrNoMemory means that
	// nothing was tried and the session continues. holdfast.ErrNotFound.
	SuspendSession(ctx context.Context, key holdfast.SessionKey) (holdfast.SuspendReport, error)

	// WakeSession sets the time at which a session of this node wakes, or removes it with the
	// zero time, and returns the session. holdfast.ErrNotFound.
	WakeSession(ctx context.Context, key holdfast.SessionKey, at time.Time) (Session, error)

	// MoveSession is StopSession for a session that is to start again: if
	// another node takes it, that node is told first and claims it. With
	// q.Elsewhere nothing begins if no node takes it: holdfast.ErrNotFound for a
	// node that is not up or cannot run the session, holdfast.ErrDraining,
	// holdfast.ErrBusy.
	MoveSession(ctx context.Context, key holdfast.SessionKey, q MoveRequest) (holdfast.MoveReport, error)

	// Usage returns what the session's container uses, on its own node. holdfast.ErrNotFound.
	Usage(key holdfast.SessionKey) (holdfast.Usage, error)

	// Logs copies the container's output to w. holdfast.ErrNotFound.
	Logs(ctx context.Context, key holdfast.SessionKey, o LogOptions, w io.Writer) error
}

// Session is a session's record, with details that only its own node knows.
type Session struct {
	holdfast.Owner
	Connections int       `json:"connections"`          // open through the gateway
	IdleSince   time.Time `json:"idle_since,omitzero"`  // set while Connections is 0 and no command runs
	LastError   string    `json:"last_error,omitempty"` // of the last boot that failed or container that died
	// Suspended is set in the state suspended: the session has no record and no
	// container, and the next connect restores its memory.
	Suspended *holdfast.Suspended `json:"suspended,omitempty"`
	// Sleep is set on its own node if the session sleeps when it is not used, or was resumed.
	Sleep *holdfast.Sleep `json:"sleep,omitempty"`
	// WakeCron is the next time at which its template wakes it, known on its own node and
	// while it is suspended.
	WakeCron time.Time `json:"wake_cron,omitzero"`
	// Group and Rotation are set for a replica: its group, and its state there.
	Group    string                `json:"group,omitempty"`
	Rotation holdfast.ReplicaState `json:"rotation,omitempty"`
}

// Sessions is the answer to a list of sessions.
type Sessions struct {
	Sessions []Session `json:"sessions"`
}

// StartRequest asks for a session to be started.
type StartRequest struct {
	// Template names what to start; "" leaves the choice to the agent.
	Template string `json:"template,omitempty"`
	// From names a snapshot, from which the session starts; it must not exist yet. Template
	// is then "".
	From string `json:"from,omitempty"`
}

// MoveRequest asks for a session to leave its node. The zero value asks for a new
// container, on another node if one takes the session.
type MoveRequest struct {
	// Elsewhere asks for the session to continue on another node, with its memory
	// if its template says so. The session stays if no node takes it.
	Elsewhere bool `json:"elsewhere,omitempty"`
	// To names that node; it needs Elsewhere. "" leaves the choice to the agent.
	To holdfast.NodeID `json:"to,omitempty"`
}

// WakeRequest asks for a session to wake. The zero value asks for it now.
type WakeRequest struct {
	At    time.Time       `json:"at,omitzero"`     // it wakes then
	In    holdfast.Millis `json:"in_ms,omitempty"` // it wakes after this time, by the clock of its node
	Clear bool            `json:"clear,omitempty"` // it does not wake at the time that was set
}

// LogOptions selects log lines.
type LogOptions struct {
	Tail       int // last n lines; below 0 is all
	Follow     bool
	Timestamps bool
}

type sessionHandlers struct {
	sessions SessionService
	forks    Forks
	groups   Groups
}

func sessionRoutes(s SessionService, f Forks, g Groups) []route {
	h := sessionHandlers{s, f, g}
	return []route{
		{method: "GET", path: "/v1/sessions", id: "listSessions", summary: "All sessions, by key.",
			access: forReader, limit: limitAsk, answer: Sessions{}, handle: asking(h.list)},
		{method: "GET", path: "/v1/sessions/{key}", id: "getSession", summary: "One session.",
			access: forReader, at: atItsOwner, limit: limitAsk, answer: Session{}, handle: asking(h.get)},
		{method: "POST", path: "/v1/sessions/{key}/start", id: "startSession", summary: "Start a session; answers when it is ready.",
			access: forAdmin, at: atItsOwner, limit: limitStart, request: StartRequest{}, answer: Session{}, handle: ofKey(h.start)},
		{method: "POST", path: "/v1/sessions/{key}/stop", id: "stopSession", summary: "Kill a session's container; answers when it is seen dead.",
			access: forAdmin, at: atItsOwner, limit: limitStop, request: Empty{}, answer: holdfast.KillReport{}, handle: ofKey(h.stop)},
		{method: "POST", path: "/v1/sessions/{key}/move", id: "moveSession", summary: "Stop a session that is to start on another node, which is told first; answers when the container is seen dead and, if the memory moves along, the other node has it.",
			access: forAdmin, at: atItsOwner, limit: limitMove, request: MoveRequest{}, answer: holdfast.MoveReport{}, handle: ofKey(h.move)},
		{method: "POST", path: "/v1/sessions/{key}/suspend", id: "suspendSession", summary: "Save a session's memory for the next connect and end its container; answers when it is seen dead.",
			access: forAdmin, at: atItsOwner, limit: limitStart, request: Empty{}, answer: holdfast.SuspendReport{}, handle: ofKey(h.suspend)},
		{method: "POST", path: "/v1/sessions/{key}/resume", id: "resumeSession", summary: "Start a suspended session with its memory; answers when it is ready.",
			access: forAdmin, at: atItsOwner, limit: limitStart, request: Empty{}, answer: Session{}, handle: ofKey(h.resume)},
		{method: "POST", path: "/v1/sessions/{key}/wake", id: "wakeSession", summary: "Wake a session that sleeps or is suspended, or set the one time at which it wakes.",
			access: forAdmin, at: atItsOwner, limit: limitStart, request: WakeRequest{}, answer: Session{}, handle: ofKey(h.wake)},
		{method: "GET", path: "/v1/sessions/{key}/usage", id: "sessionUsage", summary: "The memory and the CPU time of a session's container, in samples of the last minute or more, a second apart if the node has few sessions.",
			access: forReader, at: atItsOwner, limit: limitAsk, answer: holdfast.Usage{}, handle: asking(h.usage)},
		{method: "GET", path: "/v1/sessions/{key}/logs", id: "sessionLogs", summary: "The container's output. An error after the first byte is in the trailer " + ErrorTrailer + ".",
			access: forAdmin, at: atItsOwner, stream: true, media: mediaText, query: []param{
				{"tail", "last lines to begin with; below 0 is all", span{math.MinInt32, math.MaxInt32}},
				{"follow", "continue with new output", false},
				{"timestamps", "begin each line with its time", false},
			}, handle: h.logs},
	}
}

// ofKey is doing for a route whose path has a session's key.
func ofKey[Q, T any](do func(context.Context, holdfast.SessionKey, Q) (T, error)) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		key, err := keyOf(r)
		if err != nil {
			return err
		}
		return doing(func(r *http.Request, q Q) (T, error) { return do(r.Context(), key, q) })(w, r)
	}
}

// detached returns a context that continues when the caller disconnects: once a
// container has begun to die, its death has to be seen.
func detached(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), limit)
}

func (h sessionHandlers) list(r *http.Request) (Sessions, error) {
	all, err := h.sessions.Sessions(r.Context())
	addRotation(r.Context(), h.groups, all)
	return Sessions{notNil(all)}, err
}

func (h sessionHandlers) get(r *http.Request) (Session, error) {
	key, err := keyOf(r)
	if err != nil {
		return Session{}, err
	}
	one := make([]Session, 1)
	if one[0], err = h.sessions.Session(r.Context(), key); err != nil {
		return Session{}, h.explainGroup(key, err)
	}
	addRotation(r.Context(), h.groups, one)
	return one[0], nil
}

func (h sessionHandlers) usage(r *http.Request) (holdfast.Usage, error) {
	key, err := keyOf(r)
	if err != nil {
		return holdfast.Usage{}, err
	}
	return h.sessions.Usage(key)
}

// explainGroup adds a hint to the error for a key that a group reserves.
func (h sessionHandlers) explainGroup(key holdfast.SessionKey, err error) error {
	name := h.groups.GroupOf(key)
	if name == "" || !errors.Is(err, holdfast.ErrNotFound) {
		return err
	}
	return holdfast.WithHint(err, fmt.Sprintf("%s is a group of replicas with keys such as %s; `holdfast session ls` shows those that run", name, holdfast.ReplicaKey(name, 0)))
}

func (h sessionHandlers) start(ctx context.Context, key holdfast.SessionKey, q StartRequest) (Session, error) {
	if err := refuseReplica(h.groups, key); err != nil {
		return Session{}, err
	}
	if q.From == "" {
		return h.sessions.StartSession(ctx, key, q.Template)
	}
	if q.Template != "" {
		return Session{}, badRequest("template and from exclude each other: a session has the template of its snapshot")
	}
	name, err := snapshotName(q.From)
	if err != nil {
		return Session{}, err
	}
	if _, err := h.forks.StartFrom(ctx, key, name); err != nil {
		return Session{}, err
	}
	return h.sessions.Session(ctx, key)
}

// refuseReplica returns the error of a start of a key that a group reserves.
func refuseReplica(g Groups, key holdfast.SessionKey) error {
	name := g.GroupOf(key)
	if name == "" {
		return nil
	}
	return &Error{Code: CodeBadRequest, Message: fmt.Sprintf("session %s: only the keeper of group %s starts its replicas", key, name),
		Advice: "the agents start replicas themselves; `holdfast session ls` shows them"}
}

// resume starts a session that is suspended, or about to be, from its own
// template.
func (h sessionHandlers) resume(ctx context.Context, key holdfast.SessionKey, _ Empty) (Session, error) {
	s, err := h.sessions.Session(ctx, key)
	if err != nil {
		return Session{}, err
	}
	template := ""
	if s.State == holdfast.IsSuspended || s.State == holdfast.Leaving {
		template = s.Template
	}
	return h.sessions.StartSession(ctx, key, template)
}

// wake sets or removes the time at which a session wakes, or wakes it now.
func (h sessionHandlers) wake(ctx context.Context, key holdfast.SessionKey, q WakeRequest) (Session, error) {
	if q == (WakeRequest{}) {
		return h.resume(ctx, key, Empty{})
	}
	now, at := time.Now(), q.At
	if q.In != 0 {
		at = now.Add(time.Duration(q.In))
	}
	switch {
	case q.In != 0 && !q.At.IsZero() || q.Clear && !at.IsZero():
		return Session{}, badRequest("a time, a duration and the removal of a time exclude each other")
	case q.Clear:
		at = time.Time{}
	case !at.After(now):
		return Session{}, badRequest("a session cannot wake at %s, which is over", at.UTC().Format(time.RFC3339))
	case at.After(now.Add(holdfast.MaxWake)):
		return Session{}, badRequest("a session wakes at most %d days ahead", holdfast.MaxWake/(24*time.Hour))
	}
	return h.sessions.WakeSession(ctx, key, at)
}

func (h sessionHandlers) stop(ctx context.Context, key holdfast.SessionKey, _ Empty) (holdfast.KillReport, error) {
	ctx, cancel := detached(ctx, limitStop)
	defer cancel()
	rep, err := h.sessions.StopSession(ctx, key)
	rep.Dead, rep.Left, rep.Steps = notNil(rep.Dead), notNil(rep.Left), notNil(rep.Steps)
	return rep, err
}

func (h sessionHandlers) move(ctx context.Context, key holdfast.SessionKey, q MoveRequest) (holdfast.MoveReport, error) {
	if q.To != "" && !q.Elsewhere {
		return holdfast.MoveReport{}, badRequest("to needs elsewhere")
	}
	ctx, cancel := detached(ctx, limitMove)
	defer cancel()
	rep, err := h.sessions.MoveSession(ctx, key, q)
	rep.Dead, rep.Left, rep.Steps, rep.Memory.Lost = notNil(rep.Dead), notNil(rep.Left), notNil(rep.Steps), notNil(rep.Memory.Lost)
	return rep, err
}

func (h sessionHandlers) suspend(ctx context.Context, key holdfast.SessionKey, _ Empty) (holdfast.SuspendReport, error) {
	ctx, cancel := detached(ctx, limitStart)
	defer cancel()
	rep, err := h.sessions.SuspendSession(ctx, key)
	rep.Left = notNil(rep.Left)
	return rep, err
}

// logs has no deadline for writing: a reader may pause for any time.
func (h sessionHandlers) logs(w http.ResponseWriter, r *http.Request) error {
	key, err := keyOf(r)
	if err != nil {
		return err
	}
	o, err := logOptions(r)
	if err != nil {
		return err
	}
	out := &stream{w: w, media: mediaText}
	return out.end(h.sessions.Logs(r.Context(), key, o, out))
}

func logOptions(r *http.Request) (o LogOptions, err error) {
	q := r.URL.Query()
	var err1, err2, err3 error
	o.Tail, err1 = valueOf(q, "tail", "a whole number", func(s string) (int, error) {
		n, err := strconv.ParseInt(s, 10, 32)
		return int(n), err
	})
	if !q.Has("tail") {
		o.Tail = -1
	}
	o.Follow, err2 = boolOf(q, "follow")
	o.Timestamps, err3 = boolOf(q, "timestamps")
	return o, cmp.Or(err1, err2, err3)
}
