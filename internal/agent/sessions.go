package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sort"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/platform/engine"
	"holdfast/internal/sessions/move"
	"holdfast/internal/sessions/session"
)

// sessions implements api.SessionService: it joins this node's sessions with the
// records and the suspended sessions of the store.
type sessions struct{ a *Agent }

// keptSessions are the sessions in the store: those with an owner, and the
// suspended ones.
type keptSessions struct {
	owners    []holdfast.Owner
	suspended []move.Record
}

func (a *Agent) readSessions(ctx context.Context) (k keptSessions, err error) {
	if k.owners, _, err = a.store.List(ctx); err == nil {
		k.suspended, err = move.ListSuspended(ctx, a.store)
	}
	return k, err
}

func (s sessions) Sessions(ctx context.Context) ([]api.Session, error) {
	here := map[holdfast.SessionKey]api.Session{}
	for _, i := range s.a.sessions.List() {
		here[i.Owner.Key] = apiSession(i)
	}
	kept, err := s.a.kept.Get(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing sessions: %w", err)
	}
	for _, o := range kept.owners {
		if _, ok := here[o.Key]; !ok {
			here[o.Key] = api.Session{Owner: o}
		}
	}
	for _, x := range kept.suspended {
		if _, ok := here[x.Key]; !ok && x.Lost == "" { // it may have been claimed meanwhile
			here[x.Key] = suspendedSession(x.Suspended)
		}
	}
	all := make([]api.Session, 0, len(here))
	for _, one := range here {
		all = append(all, one)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Key < all[j].Key })
	return all, nil
}

func apiSession(i session.Info) api.Session {
	return api.Session{Owner: i.Owner, Connections: i.Connections, IdleSince: i.IdleSince, Sleep: i.Sleep, WakeCron: i.WakeCron, LastError: i.Error}
}

// suspendedSession returns a suspended session for the API.
func suspendedSession(s holdfast.Suspended) api.Session {
	return api.Session{
		Owner:     holdfast.Owner{Key: s.Key, Node: s.Node, Epoch: s.Epoch, State: holdfast.IsSuspended, Template: s.Template, ClaimedAt: s.TakenAt, WakeAt: s.WakeAt},
		Suspended: &s, WakeCron: s.WakeCron,
	}
}

func (s sessions) Session(ctx context.Context, key holdfast.SessionKey) (api.Session, error) {
	if i, err := s.a.sessions.Get(key); err == nil {
		return apiSession(i), nil
	}
	o, err := s.a.store.Get(ctx, key)
	if errors.Is(err, holdfast.ErrNotFound) {
		var kept move.Record
		if kept, err = move.FindSuspended(ctx, s.a.store, key); err == nil && kept.Lost == "" {
			return suspendedSession(kept.Suspended), nil
		} else if err == nil {
			err = holdfast.ErrNotFound
		}
	}
	if errors.Is(err, holdfast.ErrNotFound) {
		err = holdfast.ErrNotFound // the store's own text adds nothing
	}
	if err != nil {
		return api.Session{}, fmt.Errorf("session %s: %w", key, err)
	}
	return api.Session{Owner: o}, nil
}

func (s sessions) StartSession(ctx context.Context, key holdfast.SessionKey, template string) (api.Session, error) {
	o, err := s.a.replacer.Start(ctx, key, template)
	if err != nil {
		return api.Session{}, err
	}
	if i, err := s.a.sessions.Get(key); err == nil {
		return apiSession(i), nil
	}
	return api.Session{Owner: o}, nil
}

func (s sessions) MoveSession(ctx context.Context, key holdfast.SessionKey, q api.MoveRequest) (holdfast.MoveReport, error) {
	if q.Elsewhere {
		switch {
		case s.a.fleet == nil:
			return holdfast.MoveReport{}, badRequest("docs/fleet.md says how nodes become a fleet", "session %s cannot be moved: this node is not part of a fleet", key)
		case q.To == s.a.node:
			return holdfast.MoveReport{}, badRequest("name another node; holdfast node ls lists them", "session %s is on node %s already", key, q.To)
		}
		return s.a.replacer.HandOver(ctx, key, q.To)
	}
	r, err := s.a.replacer.End(ctx, key, func() {})
	return holdfast.MoveReport{KillReport: r}, err
}

func (s sessions) StopSession(ctx context.Context, key holdfast.SessionKey) (holdfast.KillReport, error) {
	r, err := s.a.sessions.Stop(ctx, key)
	if !errors.Is(err, holdfast.ErrNotFound) {
		return r, err
	}
	kept, lookErr := move.FindSuspended(ctx, s.a.store, key)
	if lookErr != nil || kept.Lost != "" {
		return r, err
	}
	if s.a.mover != nil {
		if err := s.a.mover.Drop(ctx, kept, move.Stopped); err != nil {
			return r, err
		}
	} else if err := s.a.store.DropNote(ctx, kept.Note); err != nil {
		return r, err
	}
	return holdfast.KillReport{Dead: []string{}, Left: []holdfast.Leftover{}, Steps: []holdfast.Step{}, Notice: "the session was suspended; its memory is deleted"}, nil
}

func (s sessions) SuspendSession(ctx context.Context, key holdfast.SessionKey) (holdfast.SuspendReport, error) {
	return s.a.sessions.Suspend(ctx, key)
}

func (s sessions) WakeSession(ctx context.Context, key holdfast.SessionKey, at time.Time) (api.Session, error) {
	if err := s.a.sessions.SetWake(ctx, key, at); err != nil {
		return api.Session{}, err
	}
	return s.Session(ctx, key)
}

func (s sessions) Usage(key holdfast.SessionKey) (holdfast.Usage, error) {
	return s.a.sessions.Usage(key)
}

func (s sessions) Logs(ctx context.Context, key holdfast.SessionKey, o api.LogOptions, w io.Writer) error {
	id, err := s.a.commands.Container(key)
	if err != nil {
		return err
	}
	return s.a.engine.Logs(ctx, id, engine.LogOptions{Tail: o.Tail, Follow: o.Follow, Timestamps: o.Timestamps}, w)
}

// badRequest returns the error of a request that cannot be carried out.
func badRequest(hint, format string, args ...any) error {
	return &api.Error{Code: api.CodeBadRequest, Message: fmt.Sprintf(format, args...), Advice: hint}
}
