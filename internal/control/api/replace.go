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

// replace is bound to its caller: when that leaves, no more is begun.
func (s *server) replace(w http.ResponseWriter, r *http.Request) error {
	var q ReplaceRequest
	if err := decode(w, r, &q); err != nil {
		return err
	}
	if err := q.check(); err != nil {
		return err
	}
	note(r.Context(), "which", q.which())
	keys, err := s.replaceKeys(r.Context(), q)
	if err != nil {
		return err
	}
	lines := &events{stream: stream{w: w, media: mediaNDJSON}}
	rep, err := s.b.Replace(r.Context(), Replace{
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
	switch {
	case err != nil && !lines.begun:
		return err
	case err != nil:
		lines.send(ReplaceEvent{Report: &rep, Error: toError(err)})
		return sent{err}
	}
	lines.send(ReplaceEvent{Report: &rep})
	return nil
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
		return &Error{Code: CodeBadRequest, Message: "exactly one of keys, node and all has to be given"}
	case q.Parallel < 0 || q.Parallel > MaxReplaceParallel:
		return &Error{Code: CodeBadRequest, Message: fmt.Sprintf("parallel is %d, it has to be between 1 and %d", q.Parallel, MaxReplaceParallel)}
	case timeout < 0 || timeout > MaxReplaceTimeout:
		return &Error{Code: CodeBadRequest, Message: fmt.Sprintf("the timeout is %v, it has to be over 0 and at most %v", timeout, MaxReplaceTimeout)}
	}
	for _, k := range q.Keys {
		if _, err := holdfast.ParseSessionKey(string(k)); err != nil {
			return err
		}
	}
	return nil
}

// which says for the audit log what is to be replaced.
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

// replaceKeys finds the sessions. A key that was named has to exist; one that
// is leaving already is not looked for.
func (s *server) replaceKeys(ctx context.Context, q ReplaceRequest) ([]holdfast.SessionKey, error) {
	ctx, cancel := context.WithTimeout(ctx, limitAsk)
	defer cancel()
	all, err := s.b.Sessions(ctx)
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
		return nil, s.checkNode(ctx, q.Node)
	}
	if len(keys) > MaxReplaced {
		return nil, &Error{Code: CodeBadRequest, Message: fmt.Sprintf("these are %d sessions, at most %d are replaced by one request", len(keys), MaxReplaced),
			Advice: "go node by node"}
	}
	return keys, nil
}

// checkNode tells a node without sessions from one that is not up.
func (s *server) checkNode(ctx context.Context, id holdfast.NodeID) error {
	nodes, err := s.b.Nodes(ctx)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if n.ID == id {
			return nil
		}
	}
	return holdfast.WithHint(fmt.Errorf("node %s: %w", bounded(string(id)), holdfast.ErrNotFound), "`holdfast node ls` shows the nodes that are up")
}
