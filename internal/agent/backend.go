package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/platform/engine"
	"holdfast/internal/sessions/replace"
	"holdfast/internal/sessions/session"
)

// backend answers the API with what the parts know.
type backend struct{ a *Agent }

var _ api.Backend = backend{}

func (b backend) Version() api.Version {
	v := api.BuildVersion()
	if b.a.opt.Version != "" {
		v.Version = b.a.opt.Version
	}
	v.Node, v.PID = b.a.node, os.Getpid()
	return v
}

// keptSessions are those that the store knows: with an owner, and suspended.
type keptSessions struct {
	owners    []holdfast.Owner
	suspended []suspendedNote
}

func (a *Agent) readSessions(ctx context.Context) (k keptSessions, err error) {
	if k.owners, _, err = a.store.List(ctx); err == nil {
		k.suspended, err = suspendedAll(ctx, a.store)
	}
	return k, err
}

func (b backend) Sessions(ctx context.Context) ([]api.Session, error) {
	here := map[holdfast.SessionKey]api.Session{}
	for _, i := range b.a.sessions.List() {
		here[i.Owner.Key] = wire(i)
	}
	kept, err := b.a.kept.get(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing sessions: %w", err)
	}
	for _, o := range kept.owners {
		if _, ok := here[o.Key]; !ok {
			here[o.Key] = api.Session{Owner: o}
		}
	}
	for _, s := range kept.suspended {
		if _, ok := here[s.Key]; !ok { // it may have been claimed meanwhile
			here[s.Key] = wireSuspended(s.Suspended)
		}
	}
	all := make([]api.Session, 0, len(here))
	for _, s := range here {
		all = append(all, s)
	}
	slices.SortFunc(all, func(x, y api.Session) int { return strings.Compare(string(x.Key), string(y.Key)) })
	return all, nil
}

func wire(i session.Info) api.Session {
	return api.Session{Owner: i.Owner, Connections: i.Connections, IdleSince: i.IdleSince, LastError: i.Error}
}

// wireSuspended is a session that nobody serves.
func wireSuspended(s holdfast.Suspended) api.Session {
	return api.Session{
		Owner:     holdfast.Owner{Key: s.Key, Node: s.Node, Epoch: s.Epoch, State: holdfast.IsSuspended, Template: s.Template, ClaimedAt: s.TakenAt},
		Suspended: &s,
	}
}

func (b backend) Session(ctx context.Context, key holdfast.SessionKey) (api.Session, error) {
	if i, err := b.a.sessions.Get(key); err == nil {
		return wire(i), nil
	}
	o, err := b.a.store.Get(ctx, key)
	if errors.Is(err, holdfast.ErrNotFound) {
		var s holdfast.Suspended
		if s, _, err = suspendedOne(ctx, b.a.store, key); err == nil {
			return wireSuspended(s), nil
		}
	}
	if errors.Is(err, holdfast.ErrNotFound) {
		err = holdfast.ErrNotFound // the store's own words add nothing
	}
	if err != nil {
		return api.Session{}, fmt.Errorf("session %s: %w", key, err)
	}
	return api.Session{Owner: o}, nil
}

func (b backend) StartSession(ctx context.Context, key holdfast.SessionKey, template string) (api.Session, error) {
	o, err := b.a.start(ctx, key, template)
	if err != nil {
		return api.Session{}, err
	}
	if i, err := b.a.sessions.Get(key); err == nil {
		return wire(i), nil
	}
	return api.Session{Owner: o}, nil
}

func (b backend) MoveSession(ctx context.Context, key holdfast.SessionKey, q api.MoveRequest) (holdfast.MoveReport, error) {
	if q.Elsewhere {
		return b.a.handOver(ctx, key, q.To)
	}
	r, err := b.a.move(ctx, key, func() {})
	return holdfast.MoveReport{KillReport: r}, err
}

func (b backend) StopSession(ctx context.Context, key holdfast.SessionKey) (holdfast.KillReport, error) {
	r, err := b.a.sessions.Stop(ctx, key)
	if !errors.Is(err, holdfast.ErrNotFound) {
		return r, err
	}
	s, note, lookErr := suspendedOne(ctx, b.a.store, key)
	if lookErr != nil {
		return r, err
	}
	if b.a.mover != nil {
		b.a.mover.forget(ctx, suspendedNote{s, note}, stoppedByHand)
	} else if err := b.a.store.DropNote(ctx, note); err != nil {
		return r, err
	}
	return holdfast.KillReport{Dead: []string{}, Left: []holdfast.Leftover{}, Steps: []holdfast.Step{}, Notice: "it was suspended, and its memory is dropped"}, nil
}

func (b backend) SuspendSession(ctx context.Context, key holdfast.SessionKey) (holdfast.SuspendReport, error) {
	return b.a.sessions.Suspend(ctx, key)
}

func (b backend) ResumeSession(ctx context.Context, key holdfast.SessionKey) (api.Session, error) {
	s, err := b.Session(ctx, key)
	if err != nil {
		return api.Session{}, err
	}
	if s.State != holdfast.IsSuspended && s.State != holdfast.Leaving {
		return b.StartSession(ctx, key, "") // it is there, or about to be
	}
	return b.StartSession(ctx, key, s.Template)
}

// container is the container of a session on this node.
func (b backend) container(key holdfast.SessionKey) (string, error) {
	i, err := b.a.sessions.Get(key)
	if err != nil {
		return "", err
	}
	if i.Owner.ContainerID == "" {
		return "", fmt.Errorf("session %s has no running container: %w", key, holdfast.ErrNotFound)
	}
	return i.Owner.ContainerID, nil
}

func (b backend) Logs(ctx context.Context, key holdfast.SessionKey, o api.LogOptions, w io.Writer) error {
	id, err := b.container(key)
	if err != nil {
		return err
	}
	return b.a.engine.Logs(ctx, id, engine.LogOptions{Tail: o.Tail, Follow: o.Follow, Timestamps: o.Timestamps}, w)
}

func (b backend) Exec(ctx context.Context, key holdfast.SessionKey, e api.Exec) (int, error) {
	id, err := b.container(key)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return b.a.engine.Exec(ctx, id, engine.Exec{
		Command: e.Command, TTY: e.TTY,
		Stdin: e.Stdin, Stdout: e.Stdout, Stderr: e.Stderr,
		Resize: sizes(ctx, e.Resize),
	})
}

// sizes passes terminal sizes on in the engine's type until ctx is done.
func sizes(ctx context.Context, in <-chan api.Size) <-chan engine.Size {
	if in == nil {
		return nil
	}
	out := make(chan engine.Size)
	go func() {
		for {
			select {
			case s := <-in:
				select {
				case out <- engine.Size{Rows: uint(s.Rows), Cols: uint(s.Cols)}:
				case <-ctx.Done():
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// Nodes are as they published themselves last, which is a moment ago; what this
// node knows of itself is newer.
func (b backend) Nodes(ctx context.Context) ([]holdfast.Node, error) {
	all, err := b.a.store.Nodes(ctx)
	for i := range all {
		if all[i].ID == b.a.node {
			all[i].Sessions, all[i].Boots = b.a.sessions.Counts()
			all[i].Draining = b.a.sessions.Draining()
		}
	}
	return all, err
}

func (b backend) Drain(ctx context.Context, q api.DrainRequest, progress func(holdfast.Step)) (holdfast.DrainReport, error) {
	return b.a.drain(ctx, drainOptions(b.a.cfg.Drain, q), progress), nil
}

func (b backend) Cordon(context.Context) error { return b.a.cordon() }

func (b backend) Uncordon(context.Context) error {
	return b.a.uncordon()
}

func (b backend) Replace(ctx context.Context, q api.Replace, progress func(bool, holdfast.Replacement)) (holdfast.ReplaceReport, error) {
	if !b.a.replacing.TryLock() {
		return holdfast.ReplaceReport{}, fmt.Errorf("another replacement of sessions is under way on node %s: %w", b.a.node, holdfast.ErrBusy)
	}
	defer b.a.replacing.Unlock()
	o := replace.Options{Keys: q.Keys, Parallel: q.Parallel, Timeout: q.Timeout, History: b.a.history}
	return replace.Run(ctx, o, moves(b), progress), nil
}

func (b backend) Replacements(_ context.Context, limit int) ([]holdfast.Replacement, error) {
	return b.a.history.List(limit)
}

func (b backend) StopAgent(keep bool) error {
	b.a.end(ending{keep: keep})
	return nil
}

func (b backend) Ready(ctx context.Context) error {
	if b.a.sessions.Draining() {
		return fmt.Errorf("node %s: %w", b.a.node, holdfast.ErrDraining)
	}
	if _, err := b.a.engine.Info(ctx); err != nil {
		return err
	}
	_, err := b.a.store.Node(ctx, b.a.node)
	if errors.Is(err, holdfast.ErrNotFound) {
		return fmt.Errorf("node %s has no record: %w", b.a.node, holdfast.ErrStore)
	}
	return err
}
