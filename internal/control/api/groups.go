package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"holdfast"
	"holdfast/internal/platform/tasks"
)

// Groups keeps the groups of replicas.
type Groups interface {
	// Groups lists the groups, by name.
	Groups(ctx context.Context) ([]holdfast.Group, error)

	// GroupOf returns the name of the group that a key names or is reserved for, ""
	// if there is none. It does not block.
	GroupOf(key holdfast.SessionKey) string

	// BeginReplace begins a replacement of the given replicas, or of all that serve if
	// there are none. It does not wait for it. holdfast.ErrBusy, holdfast.ErrNotFound.
	BeginReplace(ctx context.Context, name string, keys []holdfast.SessionKey, timeout time.Duration) error

	// StopReplace lets the replacement end after the present replica.
	// holdfast.ErrNotFound if none is under way.
	StopReplace(ctx context.Context, name string) error
}

// GroupList is the answer to a list of groups.
type GroupList struct {
	Groups []holdfast.Group `json:"groups"`
}

// ReplaceProgress is what the replacement of a replica waits for.
type ReplaceProgress struct {
	Key   holdfast.SessionKey   `json:"key"` // of the new replica
	Old   holdfast.SessionKey   `json:"old"`
	Phase holdfast.ReplacePhase `json:"phase"`
	Text  string                `json:"text,omitempty"` // last line of the command caught_up
}

type groupHandlers struct{ groups Groups }

func groupRoutes(g Groups) []route {
	h := groupHandlers{g}
	return []route{
		{method: "GET", path: "/v1/groups", id: "listGroups", summary: "The groups of replicas, by name, each with its last replacement.",
			access: forReader, limit: limitAsk, answer: GroupList{}, handle: asking(h.list)},
		{method: "POST", path: "/v1/groups/{name}/stop-replacing", id: "stopReplacing", summary: "End the replacement of a group after the replica whose turn it is.",
			access: forAdmin, limit: limitAsk, request: Empty{}, status: http.StatusNoContent, handle: changing(h.stop)},
	}
}

func (h groupHandlers) list(r *http.Request) (GroupList, error) {
	all, err := h.groups.Groups(r.Context())
	return GroupList{notNil(all)}, err
}

func (h groupHandlers) stop(r *http.Request, _ Empty) error {
	return h.groups.StopReplace(r.Context(), r.PathValue("name"))
}

// groupOf returns the group of the keys, "" if none is one of a group.
func (h replaceHandlers) groupOf(keys []holdfast.SessionKey) (string, error) {
	name := ""
	for i, key := range keys {
		one := h.groups.GroupOf(key)
		if i > 0 && one != name {
			return "", badRequest("the replicas of a group are replaced by a request of their own")
		}
		name = one
	}
	return name, nil
}

// replicas returns the replicas that the keys of a request name, nil for all of the group.
func replicas(name string, keys []holdfast.SessionKey) []holdfast.SessionKey {
	var out []holdfast.SessionKey
	for _, key := range keys {
		if string(key) == name {
			return nil
		}
		out = append(out, key)
	}
	return out
}

// findGroup returns a group. holdfast.ErrNotFound.
func findGroup(ctx context.Context, g Groups, name string) (holdfast.Group, error) {
	all, err := g.Groups(ctx)
	if err != nil {
		return holdfast.Group{}, err
	}
	for _, one := range all {
		if one.Name == name {
			return one, nil
		}
	}
	return holdfast.Group{}, fmt.Errorf("group %s: %w", bounded(name), holdfast.ErrNotFound)
}

// followEvery is the interval at which a replacement is looked at.
const followEvery = 200 * time.Millisecond

// replaceGroup replaces replicas of a group, and follows that. The replacement goes on
// without the caller and without this agent.
func (h replaceHandlers) replaceGroup(w http.ResponseWriter, r *http.Request, name string, q ReplaceRequest) error {
	timeout := time.Duration(q.Timeout)
	if timeout == 0 {
		timeout = DefaultReplaceTimeout
	}
	if err := h.groups.BeginReplace(r.Context(), name, replicas(name, q.Keys), timeout); err != nil {
		return err
	}
	lines := &events{stream: stream{w: w, media: mediaNDJSON}}
	rep, err := h.follow(r.Context(), name, lines.send)
	rep.Rows, rep.Gone, rep.Unbegun = notNil(rep.Rows), notNil(rep.Gone), notNil(rep.Unbegun)
	note(r.Context(), "replaced", len(rep.Rows)-rep.Failed())
	note(r.Context(), "failed", rep.Failed())
	return lines.end(err, func(e *Error) any { return ReplaceEvent{Report: &rep, Error: e} })
}

// follow sends a line when a replacement of a replica begins, for each of its phases, and
// when it has ended. It returns the report of the group's replacement at its end.
func (h replaceHandlers) follow(ctx context.Context, name string, send func(any)) (holdfast.ReplaceReport, error) {
	var told groupTold
	for {
		one, err := findGroup(ctx, h.groups, name)
		if err != nil && ctx.Err() == nil && !retryable(err) {
			return holdfast.ReplaceReport{}, err
		}
		if err == nil && told.another(one) {
			return holdfast.ReplaceReport{}, fmt.Errorf("another replacement of group %s has begun: %w", name, holdfast.ErrBusy)
		}
		if err == nil {
			for _, e := range told.news(one) {
				send(e)
			}
			if told.ended {
				return one.Replacing.Report, nil
			}
		}
		if tasks.Sleep(ctx, followEvery) != nil {
			return holdfast.ReplaceReport{}, context.Cause(ctx)
		}
	}
}

// retryable reports whether the store may answer later.
func retryable(err error) bool { return codeOf(err) == CodeStoreDown || codeOf(err) == CodeTimeout }

// groupTold is what the caller of a replacement has been told.
type groupTold struct {
	started time.Time
	rows    int
	began   holdfast.SessionKey
	last    ReplaceProgress
	ended   bool
}

// another reports whether the group's replacement is not the one that was followed before.
func (t *groupTold) another(one holdfast.Group) bool {
	return one.Replacing == nil || !t.started.IsZero() && !t.started.Equal(one.Replacing.Report.Started)
}

// news returns what has changed since the last call.
func (t *groupTold) news(one holdfast.Group) []ReplaceEvent {
	p := one.Replacing
	t.started, t.ended = p.Report.Started, !p.Active()
	var out []ReplaceEvent
	for _, row := range p.Report.Rows[min(t.rows, len(p.Report.Rows)):] {
		out = append(out, ReplaceEvent{Ended: &row})
	}
	t.rows = len(p.Report.Rows)
	if p.Phase == "" || p.Now.Replica == nil {
		return out
	}
	if p.Now.Key != t.began || len(out) > 0 {
		t.began = p.Now.Key
		out = append(out, ReplaceEvent{Began: &p.Now})
	}
	if now := (ReplaceProgress{p.Now.Key, p.Now.Replica.Old, p.Phase, p.Progress}); now != t.last {
		t.last = now
		out = append(out, ReplaceEvent{Progress: &now})
	}
	return out
}

// oldWay turns a request for a group into one for the sessions of its replicas, which end
// before they start again.
func (h replaceHandlers) oldWay(ctx context.Context, name string, q ReplaceRequest) (ReplaceRequest, error) {
	one, err := findGroup(ctx, h.groups, name)
	if err != nil {
		return q, err
	}
	if one.Replacing.Active() {
		return q, fmt.Errorf("group %s: a replacement is under way: %w", name, holdfast.ErrBusy)
	}
	keys := replicas(name, q.Keys)
	for _, r := range one.Replicas {
		if len(keys) == 0 && r.State == holdfast.ReplicaServing {
			q.Keys = append(q.Keys, r.Key)
		}
	}
	q.Keys = slices.DeleteFunc(q.Keys, func(key holdfast.SessionKey) bool { return string(key) == name })
	q.Parallel, q.MaxUnavailable = q.MaxUnavailable, 0
	return q, nil
}

// addRotation adds to sessions that are replicas their group and their state there.
func addRotation(ctx context.Context, g Groups, all []Session) {
	if !slices.ContainsFunc(all, func(s Session) bool { return g.GroupOf(s.Key) != "" }) {
		return
	}
	groups, err := g.Groups(ctx)
	if err != nil {
		return // the sessions are known without it
	}
	for _, one := range groups {
		for i := range all {
			if r := one.Replica(all[i].Key); r != nil {
				all[i].Group, all[i].Rotation = one.Name, r.State
			}
		}
	}
}
