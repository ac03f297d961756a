package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"holdfast"
)

const pathTake = "/fleet/v1/image/take"

// takeRequest asks for the image of a session's epoch Epoch. The asking node has
// claimed the session at epoch Next.
type takeRequest struct {
	Key   holdfast.SessionKey `json:"key"`
	Epoch holdfast.Epoch      `json:"epoch"`
	Next  holdfast.Epoch      `json:"next"`
}

func (q takeRequest) check() error {
	if _, err := holdfast.ParseSessionKey(string(q.Key)); err != nil {
		return err
	}
	if q.Epoch <= 0 || q.Next <= q.Epoch {
		return fmt.Errorf("session %s: epoch %d does not follow %d", q.Key, q.Next, q.Epoch)
	}
	return nil
}

// TakeImage calls read with the image of a session's epoch, which the node from keeps.
// This node must have claimed the session at epoch next. The other node deletes the
// image. holdfast.ErrNotFound means that there is no such node or image.
func (f *Fleet) TakeImage(ctx context.Context, from holdfast.NodeID, key holdfast.SessionKey, epoch, next holdfast.Epoch, read func(io.Reader) error) error {
	n, err := f.deps.Store.Node(ctx, from)
	if err == nil && n.PeerAddress == "" {
		err = fmt.Errorf("it has no peer address: %w", holdfast.ErrNotFound)
	}
	if err == nil {
		err = f.peers.takeImage(ctx, n, takeRequest{key, epoch, next}, read)
	}
	if err != nil {
		return fmt.Errorf("take the image of session %s from node %s: %w", key, from, err)
	}
	return nil
}

func (p *peers) takeImage(ctx context.Context, from holdfast.Node, q takeRequest, read func(io.Reader) error) error {
	body, err := json.Marshal(q)
	if err != nil {
		return err
	}
	var resp *http.Response
	// A second request is safe: the other node gives an image away once.
	err = retryOnce(ctx, func() (err error) {
		resp, err = p.send(ctx, from, pathTake, "application/json", bytes.NewReader(body), imageIdleTimeout)
		return err
	})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		err := fmt.Errorf("it %w", unexpectedStatus(resp))
		if resp.StatusCode == http.StatusNotFound {
			err = fmt.Errorf("%w: %w", holdfast.ErrNotFound, err)
		}
		return err
	}
	return read(resp.Body)
}

// take gives an image to the node that owns the session, and to no other node.
func (h *handler) take(w http.ResponseWriter, r *http.Request) {
	var q takeRequest
	from, ok := h.read(w, r, maxAcquireBody, &q)
	if !ok {
		return
	}
	if h.f.deps.GiveImage == nil {
		http.Error(w, "this node keeps no images", http.StatusNotFound)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), imageTimeout)
	defer cancel()
	o, err := h.f.deps.Store.Get(ctx, q.Key)
	switch {
	case err != nil && !errors.Is(err, holdfast.ErrNotFound):
		http.Error(w, cut(err.Error(), maxText), http.StatusServiceUnavailable)
		return
	case err != nil || o.Node != from || o.Epoch != q.Next:
		http.Error(w, fmt.Sprintf("node %s does not have session %s at epoch %d", from, q.Key, q.Next), http.StatusForbidden)
		return
	}
	out := &deadlineWriter{w: w, end: time.Now().Add(imageTimeout), setDeadline: http.NewResponseController(w).SetWriteDeadline}
	err = h.f.deps.GiveImage(ctx, q.Key, q.Epoch, out)
	if err == nil {
		return
	}
	h.f.log.Warn("giving an image away failed", "session", q.Key, "to", from, "err", err)
	if out.started {
		panic(http.ErrAbortHandler) // the other node sees that the image is incomplete
	}
	status := http.StatusInternalServerError
	if errors.Is(err, holdfast.ErrNotFound) {
		status = http.StatusNotFound
	}
	http.Error(w, cut(err.Error(), maxText), status)
}

// deadlineWriter records whether anything was written. A write waits for
// imageIdleTimeout at most, and not past end.
type deadlineWriter struct {
	w           http.ResponseWriter
	started     bool
	end         time.Time
	setDeadline func(time.Time) error
}

func (b *deadlineWriter) Write(p []byte) (int, error) {
	if !b.started {
		b.w.Header().Set("Content-Type", "application/octet-stream")
	}
	b.started = true
	_ = b.setDeadline(idleDeadline(b.end)) // every server of the fleet supports deadlines
	return b.w.Write(p)
}
