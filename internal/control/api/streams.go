package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"holdfast"
)

// ErrorTrailer is the HTTP trailer that carries an Error as JSON where a stream
// broke after its first byte.
const ErrorTrailer = "Holdfast-Error"

// open counts a stream in; the caller must call the function it returns.
func (s *server) open() (closed func(), err error) {
	select {
	case s.streams <- struct{}{}:
		return func() { <-s.streams }, nil
	default:
		return nil, fmt.Errorf("%d logs and execs are open: %w", maxStreams, holdfast.ErrBusy)
	}
}

// logs has no deadline for writing: a reader may pause for as long as it likes.
func (s *server) logs(w http.ResponseWriter, r *http.Request) error {
	key, err := keyOf(r)
	if err != nil {
		return err
	}
	o, err := logOptions(r)
	if err != nil {
		return err
	}
	closed, err := s.open()
	if err != nil {
		return err
	}
	defer closed()
	out := &stream{w: w, media: mediaText}
	err = s.b.Logs(r.Context(), key, o, out)
	if err != nil && !out.begun {
		return err
	}
	out.begin()
	if err != nil {
		b, _ := json.Marshal(toError(err)) // strings only
		w.Header().Set(ErrorTrailer, string(b))
		return sent{err}
	}
	return nil
}

// stream writes an answer piece by piece. The status goes out with the first.
type stream struct {
	w     http.ResponseWriter
	media string
	begun bool
}

func (t *stream) begin() {
	if t.begun {
		return
	}
	t.begun = true
	t.w.Header().Set("Content-Type", t.media)
	t.w.Header().Set("Trailer", ErrorTrailer)
	t.w.WriteHeader(http.StatusOK)
}

func (t *stream) Write(p []byte) (int, error) {
	t.begin()
	n, err := t.w.Write(p)
	if err == nil {
		err = http.NewResponseController(t.w).Flush()
	}
	return n, err
}

// Limits of a drain's answer: how long past its budget it may take to come, and
// how long a reader may hold one line up.
const (
	drainSlack = 30 * time.Second
	eventLimit = time.Second
)

// drain goes on when the caller leaves.
func (s *server) drain(w http.ResponseWriter, r *http.Request) error {
	var q DrainRequest
	if err := decode(w, r, &q); err != nil {
		return err
	}
	budget := time.Duration(q.Budget)
	if budget < 0 || budget > MaxDrainBudget {
		return &Error{Code: CodeBadRequest, Message: fmt.Sprintf("the budget is %v, it has to be between 0 and %v", budget, MaxDrainBudget)}
	}
	if budget == 0 {
		budget = MaxDrainBudget
	}
	note(r.Context(), "engine_all", q.EngineAll)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), budget+drainSlack)
	defer cancel()
	lines := &events{stream: stream{w: w, media: mediaNDJSON}}
	rep, err := s.b.Drain(ctx, q, func(st holdfast.Step) { lines.send(DrainEvent{Step: &st}) })
	rep.Steps, rep.Left = notNil(rep.Steps), notNil(rep.Left)
	note(r.Context(), "dead", rep.Dead)
	note(r.Context(), "left", len(rep.Left))
	switch {
	case err != nil && !lines.begun:
		return err
	case err != nil:
		lines.send(DrainEvent{Report: &rep, Error: toError(err)})
		return sent{err}
	}
	lines.send(DrainEvent{Report: &rep})
	return nil
}

// events writes lines of JSON. A reader that is gone or does not read is given
// up: the work must not wait for it.
type events struct {
	stream
	mu   sync.Mutex
	lost bool
}

func (e *events) send(ev any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lost {
		return
	}
	b, err := json.Marshal(ev)
	if err == nil {
		deadline(http.NewResponseController(e.w).SetWriteDeadline, eventLimit)
		_, err = e.Write(append(b, '\n'))
	}
	e.lost = err != nil
}
