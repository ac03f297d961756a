package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"holdfast"
)

const (
	pollTimeout    = time.Minute // of one request; then the other node asks again
	writeTime      = 5 * time.Second
	maxAcquireBody = 4 << 10
	maxPrepareBody = 2 << 20
	maxServed      = 4096 // requests at once, from all nodes
)

// Handler answers other nodes, under /fleet/v1/. It never asks another node for an
// answer. It refuses requests for which Deps.Caller returns no node. An answer has
// status 200, also if it is an error, because the header is sent long before the
// answer is known. Until then the handler sends white space as a heartbeat. A request
// ends with its context and with Run.
func (f *Fleet) Handler() http.Handler {
	h := &handler{f: f, slots: make(chan struct{}, maxServed)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+pathAcquire, h.acquire)
	mux.HandleFunc("POST "+pathPrepare, h.prepare)
	mux.HandleFunc("POST "+pathImage, h.image)
	mux.HandleFunc("POST "+pathTake, h.take)
	mux.HandleFunc("POST "+pathKeep, h.keep)
	return mux
}

type handler struct {
	f     *Fleet
	slots chan struct{}
}

// caller returns the node that sent a request. It returns false after it has refused
// the request.
func (h *handler) caller(w http.ResponseWriter, r *http.Request) (holdfast.NodeID, bool) {
	from := h.f.deps.Caller(r)
	if from == "" {
		http.Error(w, "this endpoint is for nodes of the fleet only", http.StatusForbidden)
	}
	return from, from != ""
}

// read decodes a request and returns the node that sent it. It returns false after it
// has refused the request.
func (h *handler) read(w http.ResponseWriter, r *http.Request, limit int64, into any) (holdfast.NodeID, bool) {
	from, ok := h.caller(w, r)
	if !ok {
		return "", false
	}
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, limit)).Decode(into)
	if c, ok := into.(interface{ check() error }); err == nil && ok {
		err = c.check()
	}
	if err == nil {
		return from, true
	}
	status := http.StatusBadRequest
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		status = http.StatusRequestEntityTooLarge
	}
	http.Error(w, cut(err.Error(), maxText), status)
	return "", false
}

func (h *handler) acquire(w http.ResponseWriter, r *http.Request) {
	var q acquireRequest
	from, ok := h.read(w, r, maxAcquireBody, &q)
	if !ok {
		return
	}
	select {
	case h.slots <- struct{}{}:
		defer func() { <-h.slots }()
	default:
		writeAnswer(w, acquireAnswer{Error: toWire(fmt.Errorf("node %s is answering %d requests: %w", h.f.cfg.Node, maxServed, holdfast.ErrBusy))})
		return
	}
	h.f.log.Debug("request for a session", "session", q.Key, "by", from, "place", q.Place)
	h.f.respond(w, r, pollTimeout, func(ctx context.Context) any {
		o, err := h.f.local(ctx, q)
		if err != nil {
			return acquireAnswer{Error: toWire(err)}
		}
		return acquireAnswer{Owner: &o}
	})
}

// local makes the session ready on this node and releases it at once. The client's
// connection follows by itself.
func (f *Fleet) local(ctx context.Context, q acquireRequest) (holdfast.Owner, error) {
	var (
		r       holdfast.Route
		release func()
		err     error
	)
	ctx = holdfast.WithWakeReason(ctx, q.By)
	if q.Place {
		r, release, err = f.deps.Local.Acquire(ctx, q.Key, q.Template)
	} else {
		r, release, err = f.deps.Local.Join(ctx, q.Key)
	}
	if err != nil {
		return holdfast.Owner{}, err
	}
	release()
	return holdfast.Owner{Key: q.Key, Node: f.cfg.Node, Epoch: r.Epoch, State: holdfast.Ready}, nil
}

// respond writes the result of work. Until work returns, it writes heartbeats.
func (f *Fleet) respond(w http.ResponseWriter, r *http.Request, limit time.Duration, work func(context.Context) any) {
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	defer cancel()
	done := make(chan any, 1)
	started := f.tasks.Go(func(life context.Context) {
		defer context.AfterFunc(life, cancel)()
		done <- work(ctx)
	})
	if !started {
		writeAnswer(w, acquireAnswer{Error: toWire(f.errNotRunning())})
		return
	}
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		select {
		case a := <-done:
			writeAnswer(w, a)
			return
		case <-tick.C:
			if err := write(w, []byte("\n")); err != nil {
				cancel()
				<-done
				return
			}
		}
	}
}

func writeAnswer(w http.ResponseWriter, a any) {
	b, err := json.Marshal(a)
	if err != nil {
		http.Error(w, "encoding the answer: "+err.Error(), http.StatusInternalServerError)
		return
	}
	_ = write(w, append(b, '\n')) // the other node has gone, or cannot be reached
}

func write(w http.ResponseWriter, b []byte) error {
	w.Header().Set("Content-Type", "application/json")
	c := http.NewResponseController(w)
	if err := c.SetWriteDeadline(time.Now().Add(writeTime)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := w.Write(b); err != nil {
		return err
	}
	return c.Flush()
}
