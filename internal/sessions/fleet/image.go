package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"time"

	"holdfast"
)

const (
	pathImage    = "/fleet/v1/image"
	imageTimeout = 5 * time.Minute // for one image to arrive; after that the sender counts as gone

	// imageIdleTimeout is how long a transfer of an image, or the answer to it, may
	// make no progress before it ends. It is about the time that a connection needs to
	// detect a dead peer. It also detects a peer that hangs, and a middlebox that
	// accepts bytes and does not forward them.
	imageIdleTimeout = 10 * time.Second
)

var (
	// errNoSuccessor means that no node was chosen to take the session over.
	errNoSuccessor = errors.New("no node was chosen to take it over")
	// errIdleTimeout ends a request to another node.
	errIdleTimeout = errors.New("no data was transferred")
)

// Receive receives the image of a session that is handed over to this node,
// completely or not at all. It calls expected with the session and the epoch of the
// image before it keeps anything, and again when the image is complete, because the
// session may have been released without it.
type Receive func(ctx context.Context, image io.Reader, expected func(holdfast.SessionKey, holdfast.Epoch) error) error

// successor is the node that was chosen to take a session over.
type successor struct {
	epoch holdfast.Epoch
	node  holdfast.Node
	at    time.Time
}

// successorLife is longer than any drain or move.
const successorLife = 2 * time.Hour

// setSuccessor records the successor of sessions. Old ones are forgotten.
func (f *Fleet) setSuccessor(to holdfast.Node, sessions []Departing) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(f.successors, func(_ holdfast.SessionKey, s successor) bool { return now.Sub(s.at) > successorLife })
	for _, s := range sessions {
		f.successors[s.Key] = successor{s.Epoch, to, now}
	}
}

// clearSuccessors forgets the successors of sessions for which another Prepare has started. Other
// sessions may be in the middle of a move.
func (f *Fleet) clearSuccessors(sessions []Departing) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range sessions {
		delete(f.successors, s.Key)
	}
}

// ClearSuccessor forgets the successor of that epoch of a session.
func (f *Fleet) ClearSuccessor(key holdfast.SessionKey, epoch holdfast.Epoch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.successors[key].epoch == epoch {
		delete(f.successors, key)
	}
}

// SendImage streams the image of one epoch of a session to the successor that Prepare
// has chosen. It calls write in a goroutine of its own, and a second time if the
// connection breaks. That goroutine has ended when SendImage returns. Without an error
// the successor has the complete image. With an error it may have it.
func (f *Fleet) SendImage(ctx context.Context, key holdfast.SessionKey, epoch holdfast.Epoch, write func(io.Writer) error) error {
	to, err := f.successorOf(key, epoch)
	if err == nil {
		err = retryOnce(ctx, func() error { return f.peers.sendImage(ctx, to, write) })
	}
	if err != nil {
		return fmt.Errorf("send the image of session %s: %w", key, err)
	}
	return nil
}

// retryOnce calls do a second time after a broken connection: a kept-alive connection
// may have been closed long ago. It does not retry after errIdleTimeout, because the
// peer would most likely hang again while a client waits.
func retryOnce(ctx context.Context, do func() error) error {
	err := do()
	if errors.Is(err, errUnreachable) && !errors.Is(err, errIdleTimeout) && ctx.Err() == nil {
		if second := do(); second != nil {
			return fmt.Errorf("%w; second attempt: %w", err, second)
		}
		return nil
	}
	return err
}

// CanSend returns nil if the image of that epoch of the session has a successor to go
// to, else the reason.
func (f *Fleet) CanSend(key holdfast.SessionKey, epoch holdfast.Epoch) error {
	_, err := f.successorOf(key, epoch)
	return err
}

func (f *Fleet) successorOf(key holdfast.SessionKey, epoch holdfast.Epoch) (holdfast.Node, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	to, ok := f.successors[key]
	if !ok || to.epoch != epoch {
		return holdfast.Node{}, errNoSuccessor
	}
	return to.node, nil
}

func (p *peers) sendImage(ctx context.Context, to holdfast.Node, write func(io.Writer) error) error {
	r, w := io.Pipe()
	wrote := make(chan error, 1)
	go func() {
		err := write(w)
		w.CloseWithError(err) // nil means EOF
		wrote <- err
	}()
	err := p.putImage(ctx, to, r)
	r.CloseWithError(io.ErrClosedPipe) // ends write if nothing reads
	if failed := <-wrote; failed != nil && !errors.Is(failed, io.ErrClosedPipe) {
		return failed
	}
	return err
}

func (p *peers) putImage(ctx context.Context, to holdfast.Node, image io.Reader) error {
	resp, err := p.send(ctx, to, pathImage, "application/octet-stream", io.NopCloser(image), imageIdleTimeout)
	if err != nil {
		return fmt.Errorf("node %s: %w", to.ID, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		return fmt.Errorf("node %s %w", to.ID, unexpectedStatus(resp))
	}
	return nil
}

// send sends a body to a node and returns the answer with any status. It ends the
// transfer if no data is transferred for the time idle. Apart from ctx there is no
// other limit in time. Errors: errUnreachable, errIdleTimeout.
func (p *peers) send(ctx context.Context, to holdfast.Node, path, media string, body io.Reader, idle time.Duration) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(context.WithValue(ctx, peerKey{}, peer{to.ID, to.PeerAddress}))
	timer := time.AfterFunc(idle, func() { cancel(fmt.Errorf("%w for %v", errIdleTimeout, idle)) })
	active := func() { timer.Reset(idle) }
	done := func() { timer.Stop(); cancel(nil) }
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+poolName(to)+path, body)
	if err != nil {
		done()
		return nil, err
	}
	req.Header.Set("Content-Type", media)
	req.Body = &watchedBody{ctx: ctx, from: req.Body, onRead: active, close: req.Body.Close}
	resp, err := p.http.Do(req)
	if err != nil {
		err = withCause(ctx, err)
		done()
		return nil, fmt.Errorf("%w: %w", errUnreachable, err)
	}
	closeBody := resp.Body.Close
	resp.Body = &watchedBody{ctx: ctx, from: resp.Body, onRead: active, close: func() error { defer done(); return closeBody() }}
	return resp, nil
}

// watchedBody is a body whose reads reset the idle timeout. It is closed once.
type watchedBody struct {
	ctx    context.Context // its cause says why the transfer ends early
	from   io.Reader
	onRead func() // called after every read that returned data
	close  func() error
}

func (w *watchedBody) Read(b []byte) (int, error) {
	n, err := w.from.Read(b)
	if n > 0 {
		w.onRead()
	}
	if err != nil && err != io.EOF {
		err = withCause(w.ctx, err)
	}
	return n, err
}

func (w *watchedBody) Close() error { return w.close() }

// withCause adds the cause of ctx's end, if ctx has ended.
func withCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// unexpectedStatus returns the error of an answer with an unexpected status.
func unexpectedStatus(resp *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
	return fmt.Errorf("answers %s: %.512q", resp.Status, bytes.TrimSpace(text))
}

// image receives an image. It runs on the successor.
func (h *handler) image(w http.ResponseWriter, r *http.Request) {
	from, ok := h.caller(w, r)
	if !ok {
		return
	}
	if h.f.deps.ReceiveImage == nil {
		http.Error(w, "this node accepts no images", http.StatusNotImplemented)
		return
	}
	body := &deadlineReader{from: r.Body, end: time.Now().Add(imageTimeout), setDeadline: http.NewResponseController(w).SetReadDeadline}
	err := h.f.deps.ReceiveImage(r.Context(), body, func(key holdfast.SessionKey, epoch holdfast.Epoch) error {
		if !h.f.next.expects(from, key, epoch) {
			return fmt.Errorf("session %s at epoch %d was not announced by node %s", key, epoch, from)
		}
		return nil
	})
	if err != nil {
		h.f.log.Warn("receiving an image failed", "from", from, "err", err)
		http.Error(w, cut(err.Error(), maxText), http.StatusUnprocessableEntity)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// deadlineReader is the body of a request. A read waits for imageIdleTimeout at most,
// and not past end.
type deadlineReader struct {
	from        io.Reader
	end         time.Time
	setDeadline func(time.Time) error
}

func (h *deadlineReader) Read(b []byte) (int, error) {
	_ = h.setDeadline(idleDeadline(h.end)) // every server of the fleet supports deadlines
	return h.from.Read(b)
}

// idleDeadline returns the deadline of the next read or write of a transfer that must
// be complete by end.
func idleDeadline(end time.Time) time.Time {
	if by := time.Now().Add(imageIdleTimeout); by.Before(end) {
		return by
	}
	return end
}

// expects reports whether the node has announced that epoch of the session, and
// extends the announcement.
func (x *expected) expects(from holdfast.NodeID, key holdfast.SessionKey, epoch holdfast.Epoch) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.byKey[key]
	if e == nil || e.from != from || e.Epoch != epoch {
		return false
	}
	e.until = time.Now().Add(AnnouncementTTL)
	return true
}

const pathTake = "/fleet/v1/image/take"

// takeRequest asks for the image of a session's epoch Epoch. The asking node has
// claimed the session at epoch Next.
type takeRequest struct {
	Key   holdfast.SessionKey `json:"key"`
	Epoch holdfast.Epoch      `json:"epoch"`
	Next  holdfast.Epoch      `json:"next"`
	// Last is the last epoch before Next: Epoch, or that of a claim that has not taken the
	// image. 0 is Epoch.
	Last holdfast.Epoch `json:"last,omitempty"`
	// Snapshot asks for a copy of the snapshot of that name and of epoch Epoch, which the
	// other node keeps. "" asks for the session's own image.
	Snapshot holdfast.SessionKey `json:"snapshot,omitempty"`
}

func (q takeRequest) check() error {
	if _, err := holdfast.ParseSessionKey(string(q.Key)); err != nil {
		return err
	}
	if q.Epoch <= 0 || q.Next <= q.Epoch || q.Next <= q.Last {
		return fmt.Errorf("session %s: epoch %d does not follow %d", q.Key, q.Next, q.Epoch)
	}
	return nil
}

// TakeImage calls read with the image of a suspended session, which the node left.Node keeps.
// This node must have claimed the session at epoch next. The other node deletes the
// image. holdfast.ErrNotFound means that there is no such node or image.
func (f *Fleet) TakeImage(ctx context.Context, left holdfast.Suspended, next holdfast.Epoch, read func(io.Reader) error) error {
	return f.takeImage(ctx, left.Node, takeRequest{Key: left.Key, Epoch: left.Epoch, Last: left.After, Next: next}, read)
}

// CopyImage is TakeImage of a snapshot, for the session key that this node has claimed at
// epoch next. The other node keeps the snapshot.
func (f *Fleet) CopyImage(ctx context.Context, s holdfast.MemorySnapshot, key holdfast.SessionKey, next holdfast.Epoch, read func(io.Reader) error) error {
	return f.takeImage(ctx, s.Node, takeRequest{Key: key, Epoch: s.Epoch, Next: next, Snapshot: s.Name}, read)
}

func (f *Fleet) takeImage(ctx context.Context, from holdfast.NodeID, q takeRequest, read func(io.Reader) error) error {
	n, err := f.deps.Store.Node(ctx, from)
	if err == nil && n.PeerAddress == "" {
		err = fmt.Errorf("it has no peer address: %w", holdfast.ErrNotFound)
	}
	if err == nil {
		err = f.peers.takeImage(ctx, n, q, read)
	}
	if err != nil {
		return fmt.Errorf("take the image of session %s from node %s: %w", q.Key, from, err)
	}
	return nil
}

func (p *peers) takeImage(ctx context.Context, from holdfast.Node, q takeRequest, read func(io.Reader) error) error {
	body, err := json.Marshal(q)
	if err != nil {
		return err
	}
	var resp *http.Response
	// A second request is safe: the other node gives an image away once, or copies it.
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
	if q.Snapshot != "" {
		err = h.f.deps.GiveSnapshot(ctx, q.Snapshot, q.Epoch, out)
	} else {
		err = h.f.deps.GiveImage(ctx, q.Key, q.Epoch, max(q.Epoch, q.Last), out)
	}
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
