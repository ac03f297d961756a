package api

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"holdfast"
)

// Replacer gives sessions new containers.
type Replacer interface {
	// Replace gives sessions new containers, a few at a time. It calls progress
	// when each replacement begins and when it has ended. When ctx is done it
	// begins no more and waits for those that run; it returns soon when the
	// agent ends. A replacement that failed is in the report and is not an
	// error. holdfast.ErrBusy while another Replace runs.
	Replace(ctx context.Context, q Replace, progress func(ended bool, r holdfast.Replacement)) (holdfast.ReplaceReport, error)

	// Replacements lists past replacements of this node, the newest first, at
	// most limit (0: all).
	Replacements(limit int) ([]holdfast.Replacement, error)
}

// Bounds and defaults of replacing sessions.
const (
	MaxReplaceParallel    = 64
	DefaultReplaceTimeout = 5 * time.Minute
	MaxReplaceTimeout     = time.Hour
	MaxReplaced           = 10_000 // sessions in one request
)

// ReplaceRequest asks for new containers for sessions: for the Keys, for all of
// a Node, or for All; exactly one of the three. Keys may be the name of one group, or
// replicas of it.
type ReplaceRequest struct {
	Keys []holdfast.SessionKey `json:"keys,omitempty"`
	Node holdfast.NodeID       `json:"node,omitempty"`
	All  bool                  `json:"all,omitempty"`
	// Parallel is how many sessions are replaced at a time, up to
	// MaxReplaceParallel; 0 is 1.
	Parallel int `json:"parallel,omitempty"`
	// Timeout is how long one replacement may take, up to MaxReplaceTimeout; 0
	// is DefaultReplaceTimeout.
	Timeout holdfast.Millis `json:"timeout_ms,omitempty"`
	// MaxUnavailable, over 0, is for replicas of a group only: that many at a time end
	// before they start again. 0 makes a new replica first, one by one.
	MaxUnavailable int `json:"max_unavailable,omitempty"`
}

// Replace is a request with the keys of its sessions.
type Replace struct {
	Keys     []holdfast.SessionKey // each once
	Parallel int                   // at least 1
	Timeout  time.Duration         // over 0
}

// ReplaceEvent is one line of the answer: a replacement that begins, one that
// has ended, and last the report. Error is set if nothing could be done.
type ReplaceEvent struct {
	Began *holdfast.Replacement `json:"began,omitempty"`
	// Progress tells what the replacement of a replica waits for.
	Progress *ReplaceProgress        `json:"progress,omitempty"`
	Ended    *holdfast.Replacement   `json:"ended,omitempty"`
	Report   *holdfast.ReplaceReport `json:"report,omitempty"`
	Error    *Error                  `json:"error,omitempty"`
}

// Replacements is the answer to a list of past replacements.
type Replacements struct {
	Replacements []holdfast.Replacement `json:"replacements"`
}

type replaceHandlers struct {
	replacer Replacer
	sessions SessionService
	nodes    NodeService
	groups   Groups
}

func replaceRoutes(p Replacer, s SessionService, n NodeService, g Groups) []route {
	h := replaceHandlers{p, s, n, g}
	return []route{
		{method: "POST", path: "/v1/replace", id: "replaceSessions", summary: "Give sessions new containers, a few at a time; a line when each replacement begins and when it has ended, then one with the report. If the caller disconnects, no more are begun; the replacement of a group goes on.",
			access: forAdmin, request: ReplaceRequest{}, answer: ReplaceEvent{}, media: mediaNDJSON, handle: h.replace},
		{method: "GET", path: "/v1/replacements", id: "listReplacements", summary: "Past replacements by this node's agent, the newest first.",
			access: forReader, limit: limitAsk, answer: Replacements{}, query: []param{limitParam}, handle: asking(h.list)},
		{method: "GET", path: "/v1/nodes/{node}/replacements", id: "listReplacementsByID", summary: "As listReplacements, of the given node's agent.",
			access: forReader, at: atItsNode, limit: limitAsk, answer: Replacements{}, query: []param{limitParam}, handle: asking(h.list)},
	}
}

func (h replaceHandlers) list(r *http.Request) (Replacements, error) {
	limit, err := limitOf(r)
	if err != nil {
		return Replacements{}, err
	}
	rows, err := h.replacer.Replacements(limit)
	return Replacements{notNil(rows)}, err
}

// replace is bound to its caller: when the caller disconnects, no more
// replacements are begun.
func (h replaceHandlers) replace(w http.ResponseWriter, r *http.Request) error {
	var q ReplaceRequest
	if err := decode(w, r, &q); err != nil {
		return err
	}
	if err := q.check(); err != nil {
		return err
	}
	note(r.Context(), "which", q.which())
	name, err := h.groupOf(q.Keys)
	switch {
	case err != nil:
		return err
	case q.MaxUnavailable > 0 && name == "":
		return badRequest("max_unavailable is for replicas of a group")
	case q.MaxUnavailable > 0:
		if q, err = h.oldWay(r.Context(), name, q); err != nil {
			return err
		}
	case name != "":
		return h.replaceGroup(w, r, name, q)
	}
	keys, err := h.keys(r.Context(), q)
	if err != nil {
		return err
	}
	lines := &events{stream: stream{w: w, media: mediaNDJSON}}
	rep, err := h.replacer.Replace(r.Context(), Replace{
		Keys: keys, Parallel: max(q.Parallel, 1), Timeout: cmp.Or(time.Duration(q.Timeout), DefaultReplaceTimeout),
	}, func(ended bool, row holdfast.Replacement) {
		if ended {
			lines.send(ReplaceEvent{Ended: &row})
		} else {
			lines.send(ReplaceEvent{Began: &row})
		}
	})
	rep.Rows, rep.Gone, rep.Unbegun = notNil(rep.Rows), notNil(rep.Gone), notNil(rep.Unbegun)
	note(r.Context(), "replaced", len(rep.Rows)-rep.Failed())
	note(r.Context(), "failed", rep.Failed())
	return lines.end(err, func(e *Error) any { return ReplaceEvent{Report: &rep, Error: e} })
}

func (q ReplaceRequest) check() error {
	ways := 0
	for _, given := range []bool{len(q.Keys) > 0, q.Node != "", q.All} {
		if given {
			ways++
		}
	}
	switch timeout := time.Duration(q.Timeout); {
	case ways != 1:
		return badRequest("exactly one of keys, node and all must be given")
	case q.Parallel < 0 || q.Parallel > MaxReplaceParallel:
		return badRequest("parallel is %d, it must be between 1 and %d", q.Parallel, MaxReplaceParallel)
	case q.MaxUnavailable < 0 || q.MaxUnavailable > holdfast.MaxReplicas:
		return badRequest("max_unavailable is %d, it must be between 0 and %d", q.MaxUnavailable, holdfast.MaxReplicas)
	case timeout < 0 || timeout > MaxReplaceTimeout:
		return badRequest("the timeout is %v, it must be over 0 and at most %v", timeout, MaxReplaceTimeout)
	}
	for _, k := range q.Keys {
		if _, err := holdfast.ParseSessionKey(string(k)); err != nil {
			return err
		}
	}
	return nil
}

// which names the sessions for the audit log.
func (q ReplaceRequest) which() string {
	switch {
	case q.All:
		return "all"
	case q.Node != "":
		return "node " + bounded(string(q.Node))
	case len(q.Keys) == 1:
		return "session " + string(q.Keys[0])
	}
	return fmt.Sprintf("%d sessions, the first %s", len(q.Keys), q.Keys[0])
}

// keys finds the sessions. A key that the request names must exist. All and Node
// leave out sessions that are leaving already.
func (h replaceHandlers) keys(ctx context.Context, q ReplaceRequest) ([]holdfast.SessionKey, error) {
	ctx, cancel := context.WithTimeout(ctx, limitAsk)
	defer cancel()
	all, err := h.sessions.Sessions(ctx)
	if err != nil {
		return nil, err
	}
	there := map[holdfast.SessionKey]bool{}
	keys := []holdfast.SessionKey{}
	for _, one := range all {
		if one.State == holdfast.IsSuspended {
			continue // there is nothing to replace
		}
		there[one.Key] = true
		if (q.All || q.Node != "" && one.Node == q.Node) && one.State != holdfast.Leaving {
			keys = append(keys, one.Key)
		}
	}
	for _, k := range q.Keys {
		if !there[k] {
			return nil, fmt.Errorf("session %s: %w", k, holdfast.ErrNotFound)
		}
		if !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	if q.Node != "" && len(keys) == 0 {
		return nil, h.checkNode(ctx, q.Node)
	}
	if len(keys) > MaxReplaced {
		return nil, &Error{Code: CodeBadRequest, Message: fmt.Sprintf("these are %d sessions, one request replaces at most %d", len(keys), MaxReplaced),
			Advice: "replace the sessions node by node"}
	}
	return keys, nil
}

// checkNode returns nil for a node without sessions, and an error for one that is
// not up.
func (h replaceHandlers) checkNode(ctx context.Context, id holdfast.NodeID) error {
	nodes, err := h.nodes.Nodes(ctx)
	if err != nil || slices.ContainsFunc(nodes, func(n holdfast.Node) bool { return n.ID == id }) {
		return err
	}
	return holdfast.WithHint(fmt.Errorf("node %s: %w", bounded(string(id)), holdfast.ErrNotFound), "`holdfast node ls` shows the nodes that are up")
}
