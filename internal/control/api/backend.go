package api

import (
	"context"
	"io"
	"time"

	"holdfast"
)

// Backend is the agent as the API needs it. All methods may be called from any
// goroutine and return when ctx is done. Errors that a caller decides by wrap
// the sentinels of the root package, *holdfast.KeyError or *holdfast.BootError;
// everything else is answered as "internal". A method that can only act on this
// node's sessions returns a *holdfast.ElsewhereError for another one's, and the
// request is passed on, once.
type Backend interface {
	PrefetchBackend
	Spinups
	Collector
	Protector
	Recorder
	Doctor

	Version() Version

	// Sessions lists all sessions, by key.
	Sessions(ctx context.Context) ([]Session, error)

	// Session returns one, also another node's: by its Node it is decided who
	// answers for it. holdfast.ErrNotFound.
	Session(ctx context.Context, key holdfast.SessionKey) (Session, error)

	// StartSession returns when the session is ready, also when it was
	// before. A template of "" is the agent's choice. *holdfast.BootError.
	StartSession(ctx context.Context, key holdfast.SessionKey, template string) (Session, error)

	// StopSession returns when the container is seen dead and the record is
	// released. What could not be killed is in the report, and is no error.
	// holdfast.ErrNotFound.
	StopSession(ctx context.Context, key holdfast.SessionKey) (holdfast.KillReport, error)

	// SuspendSession saves the session's memory for its next life and stops it;
	// whoever connects next gets it back as it was. An error that wraps
	// holdfast.ErrNoMemory says that it was not tried, and the session goes on.
	// holdfast.ErrNotFound.
	SuspendSession(ctx context.Context, key holdfast.SessionKey) (holdfast.SuspendReport, error)

	// ResumeSession is StartSession of a session that is suspended or was not
	// stopped yet; whether it has its memory is in its Memory.
	// holdfast.ErrNotFound where there is neither.
	ResumeSession(ctx context.Context, key holdfast.SessionKey) (Session, error)

	// MoveSession is StopSession for a session that is to come up again: where
	// another node takes it, that one is told before, and claims it. With
	// q.Elsewhere nothing is begun where none does: holdfast.ErrNotFound for a
	// node that is not there or cannot run the session, holdfast.ErrDraining,
	// holdfast.ErrBusy.
	MoveSession(ctx context.Context, key holdfast.SessionKey, q MoveRequest) (holdfast.MoveReport, error)

	// Logs copies the container's output to w. holdfast.ErrNotFound.
	Logs(ctx context.Context, key holdfast.SessionKey, o LogOptions, w io.Writer) error

	// Exec runs a command in the container and returns its exit code once
	// its output is written. holdfast.ErrNotFound.
	Exec(ctx context.Context, key holdfast.SessionKey, e Exec) (exitCode int, err error)

	// Nodes lists the nodes whose lease lives, by id.
	Nodes(ctx context.Context) ([]holdfast.Node, error)

	// Drain hands over everything this node owns, and calls progress after
	// each step. What could not be killed is in the report, and is no error.
	Drain(ctx context.Context, q DrainRequest, progress func(holdfast.Step)) (holdfast.DrainReport, error)

	// Cordon makes this node take no new session; it keeps those it has.
	Cordon(ctx context.Context) error

	// Uncordon lets the node take sessions again after a drain or a cordon.
	Uncordon(ctx context.Context) error

	// Replace gives sessions new containers, a few at a time, and calls
	// progress when each begins and when it has ended. When ctx is done it
	// begins no more, and waits for those under way; it returns soon when
	// the agent ends. What failed is in the report, and is no error.
	// holdfast.ErrBusy while another one runs.
	Replace(ctx context.Context, q Replace, progress func(ended bool, r holdfast.Replacement)) (holdfast.ReplaceReport, error)

	// Replacements lists what Replace did here before, the newest first, at
	// most limit (0: all).
	Replacements(ctx context.Context, limit int) ([]holdfast.Replacement, error)

	// StopAgent makes the agent end, and returns at once. With keep the
	// containers are left to the next agent.
	StopAgent(keep bool) error

	// Upgrade starts the program on disk as the next agent of this host, and
	// returns when that takes over: soon this agent serves nothing any more.
	// When ctx is done before, or with an error, nothing has changed. trial
	// is how long this one stands by. holdfast.ErrBusy while another upgrade
	// or a drain is under way.
	Upgrade(ctx context.Context, trial time.Duration) (Upgrade, error)

	// LastUpgrade says how the last one went, or goes.
	LastUpgrade() Upgrade

	// Ready returns nil when the agent can serve sessions.
	Ready(ctx context.Context) error
}
