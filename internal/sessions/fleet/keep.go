package fleet

import (
	"cmp"
	"context"
	"fmt"
	"net/http"

	"holdfast"
)

const pathKeep = "/fleet/v1/image/keep"

// keepRequest asks a node to take the image of a suspended session from the sender.
type keepRequest struct {
	Key      holdfast.SessionKey `json:"key"`
	Template string              `json:"template"`
}

func (q keepRequest) check() error {
	if _, err := holdfast.ParseSessionKey(string(q.Key)); err != nil {
		return err
	}
	return checkTemplate(q.Template)
}

type keepAnswer struct {
	Error *wireError `json:"error,omitempty"`
}

// HandOverSuspended makes another node take the image of a suspended session of this node, and
// returns that node. If a transfer has begun, the end of ctx does not interrupt it. Errors:
// holdfast.ErrDraining, ErrBusy or ErrNotFound if no node takes it; the session is then as it
// was.
func (f *Fleet) HandOverSuspended(ctx context.Context, s holdfast.Suspended) (holdfast.NodeID, error) {
	avoid := map[holdfast.NodeID]bool{f.cfg.Node: true}
	var last error
	for range triesPerRound {
		n, err := f.nodes.place(ctx, avoid, "")
		if err != nil {
			return "", fmt.Errorf("suspended session %s: %w", s.Key, cmp.Or(last, err))
		}
		var a keepAnswer
		asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), imageTimeout)
		last = f.peers.post(asking, n, pathKeep, keepRequest{s.Key, s.Template}, &a)
		cancel()
		if last == nil && a.Error != nil {
			last = a.Error.err()
		}
		if last == nil {
			return n.ID, nil
		}
		avoid[n.ID] = true
	}
	return "", fmt.Errorf("suspended session %s: %w", s.Key, last)
}

// keep takes the image of a suspended session from the node that asks.
func (h *handler) keep(w http.ResponseWriter, r *http.Request) {
	var q keepRequest
	from, ok := h.read(w, r, maxAcquireBody, &q)
	if !ok {
		return
	}
	err := error(nil)
	switch {
	case h.f.deps.KeepSuspended == nil:
		err = fmt.Errorf("node %s keeps no images: %w", h.f.cfg.Node, holdfast.ErrNotFound)
	case h.f.deps.Draining():
		err = fmt.Errorf("node %s: %w", h.f.cfg.Node, holdfast.ErrDraining)
	}
	if err != nil {
		writeAnswer(w, keepAnswer{toWire(err)})
		return
	}
	h.f.log.Debug("request to keep a suspended session", "session", q.Key, "by", from)
	h.f.respond(w, r, imageTimeout, func(ctx context.Context) any {
		if err := h.f.deps.KeepSuspended(ctx, q.Key, q.Template); err != nil {
			return keepAnswer{toWire(err)}
		}
		return keepAnswer{}
	})
}
