package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"holdfast"
)

const (
	pathImage    = "/fleet/v1/image"
	imageTimeout = 5 * time.Minute // for one to come in; then its sender is gone, or as good as gone

	// imageIdleTimeout is how long nothing may move of an image that is on its way, or
	// of the answer to it: whoever waits for it waits no longer then. It is about
	// what a node's connections take to find a peer gone; this also finds one that
	// stands still, and something in between that takes bytes and keeps them.
	imageIdleTimeout = 10 * time.Second
)

var (
	// errNoSuccessor is a session whose successor nobody was told to be.
	errNoSuccessor = errors.New("no node was told to take it over")
	// errIdleTimeout ends the way of an image.
	errIdleTimeout = fmt.Errorf("nothing has moved for %v", imageIdleTimeout)
)

// ReceiveImage takes the image of a session in that is to be handed over to this node,
// whole or not at all. expected is asked for the session and the epoch that the
// image is of before anything is kept, and again once all is there: the session may
// have been given up without it.
type Receive func(ctx context.Context, image io.Reader, expected func(holdfast.SessionKey, holdfast.Epoch) error) error

// successor is the node that was told to take a session over.
type successor struct {
	epoch holdfast.Epoch
	node  holdfast.Node
}

// setSuccessor notes who takes sessions over.
func (f *Fleet) setSuccessor(to holdfast.Node, sessions []departingSession) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range sessions {
		f.successors[s.Key] = successor{s.Epoch, to}
	}
}

// clearSuccessors begins anew, with another Prepare.
func (f *Fleet) clearSuccessors() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.successors = map[holdfast.SessionKey]successor{}
}

// ClearSuccessor forgets who was to take that life of a session over.
func (f *Fleet) ClearSuccessor(key holdfast.SessionKey, epoch holdfast.Epoch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.successors[key].epoch == epoch {
		delete(f.successors, key)
	}
}

// SendImage streams the image of a session's life to the node that Prepare has
// told to take it over. write is called once, and once more where the connection
// breaks, from a goroutine of its own that has ended when SendImage returns. The image
// is there, whole, when there is no error; with one it may be.
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

// retryOnce does once more what a broken connection has ended: one that was kept since
// the last question may have ended long ago. What fell silent would most likely do so
// again, and somebody waits.
func retryOnce(ctx context.Context, do func() error) error {
	err := do()
	if errors.Is(err, errUnreachable) && !errors.Is(err, errIdleTimeout) && ctx.Err() == nil {
		if second := do(); second != nil {
			return fmt.Errorf("%w; and then: %w", err, second)
		}
		return nil
	}
	return err
}

// CanSend is why there is nobody to send the image of a session's life to, nil
// where there is.
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
		w.CloseWithError(err) // nil is the end
		wrote <- err
	}()
	err := p.putImage(ctx, to, r)
	r.CloseWithError(io.ErrClosedPipe) // ends write where nobody reads
	if failed := <-wrote; failed != nil && !errors.Is(failed, io.ErrClosedPipe) {
		return failed
	}
	return err
}

func (p *peers) putImage(ctx context.Context, to holdfast.Node, image io.Reader) error {
	resp, err := p.send(ctx, to, pathImage, "application/octet-stream", io.NopCloser(image))
	if err != nil {
		return fmt.Errorf("node %s: %w", to.ID, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		return fmt.Errorf("node %s %w", to.ID, unexpectedStatus(resp))
	}
	return nil
}

// send sends a body to a node and returns the answer, whatever it is. Neither has a
// bound in time but ctx's, as long as something moves. errUnreachable, errSilent.
func (p *peers) send(ctx context.Context, to holdfast.Node, path, media string, body io.Reader) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(context.WithValue(ctx, peerKey{}, peer{to.ID, to.PeerAddress}))
	quiet := time.AfterFunc(imageIdleTimeout, func() { cancel(errIdleTimeout) })
	heard := func() { quiet.Reset(imageIdleTimeout) }
	done := func() { quiet.Stop(); cancel(nil) }
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+poolName(to)+path, body)
	if err != nil {
		done()
		return nil, err
	}
	req.Header.Set("Content-Type", media)
	req.Body = &watchedBody{activityReader{from: req.Body, onRead: heard}, ctx, req.Body.Close}
	resp, err := p.http.Do(req)
	if err != nil {
		err = withCause(ctx, err)
		done()
		return nil, fmt.Errorf("%w: %w", errUnreachable, err)
	}
	closeBody := resp.Body.Close
	resp.Body = &watchedBody{activityReader{from: resp.Body, onRead: heard}, ctx, func() error { defer done(); return closeBody() }}
	return resp, nil
}

// watchedBody is a body of which every byte is a sign of life. It is closed once.
type watchedBody struct {
	activityReader
	ctx   context.Context // whose cause says why it ends early
	close func() error
}

func (w *watchedBody) Read(b []byte) (int, error) {
	n, err := w.activityReader.Read(b)
	if err != nil && err != io.EOF {
		err = withCause(w.ctx, err)
	}
	return n, err
}

func (w *watchedBody) Close() error { return w.close() }

// withCause adds why ctx has ended, where it has.
func withCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// unexpectedStatus is an answer that is not the one that was hoped for.
func unexpectedStatus(resp *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
	return fmt.Errorf("answers %s: %.512q", resp.Status, text)
}

// image is the successor's side.
func (h *handler) image(w http.ResponseWriter, r *http.Request) {
	from := h.f.deps.Caller(r)
	if from == "" {
		http.Error(w, "this is for nodes of the fleet", http.StatusForbidden)
		return
	}
	if h.f.deps.ReceiveImage == nil {
		http.Error(w, "this node takes no images", http.StatusNotImplemented)
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
		h.f.log.Warn("an image did not arrive", "from", from, "err", err)
		http.Error(w, cut(err.Error(), maxText), http.StatusUnprocessableEntity)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// deadlineReader is the body of a request that is not waited for longer than imageSilence at a
// time, and than end.
type deadlineReader struct {
	from        io.Reader
	end         time.Time
	setDeadline func(time.Time) error
}

func (h *deadlineReader) Read(b []byte) (int, error) {
	_ = h.setDeadline(idleDeadline(h.end)) // every server of ours can
	return h.from.Read(b)
}

// idleDeadline is until when the next bytes of what has to be over by end may take.
func idleDeadline(end time.Time) time.Time {
	if by := time.Now().Add(imageIdleTimeout); by.Before(end) {
		return by
	}
	return end
}

// expects reports whether the node has announced that life of the session, and goes
// on to wait for it.
func (x *expected) expects(from holdfast.NodeID, key holdfast.SessionKey, epoch holdfast.Epoch) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.byKey[key]
	if e == nil || e.from != from || e.Epoch != epoch {
		return false
	}
	e.until = time.Now().Add(announcementTTL)
	return true
}
