package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"holdfast"
)

// ErrorTrailer is the HTTP trailer that carries an Error as JSON when a stream
// broke after its first byte.
const ErrorTrailer = "Holdfast-Error"

// open counts a stream of the route; the caller must call the returned function when
// the stream ends.
func (s *server) open(rt route) (closed func(), err error) {
	slots, what := s.streams, "logs and execs"
	if rt.forward {
		slots, what = s.forwards, "forwarded connections"
	}
	select {
	case slots <- struct{}{}:
		return func() { <-slots }, nil
	default:
		return nil, fmt.Errorf("%d %s are open: %w", cap(slots), what, holdfast.ErrBusy)
	}
}

// stream writes an answer piece by piece. The first piece sends the status.
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

// end ends a stream with the error of the work. If the work failed before the first piece,
// end returns the error as it is.
func (t *stream) end(err error) error {
	if err != nil && !t.begun {
		return err
	}
	t.begin()
	if err != nil {
		b, _ := json.Marshal(ErrorOf(err)) // strings only
		t.w.Header().Set(ErrorTrailer, string(b))
		return sent{err}
	}
	return nil
}

// eventLimit is how long a reader may delay one line.
const eventLimit = time.Second

// events writes lines of JSON. It gives up on a reader that has disconnected or
// does not read: the work must not wait for it.
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

// end sends the last line, which last makes from the error of the work. If the
// work failed before the first line, end returns the error as it is.
func (e *events) end(err error, last func(*Error) any) error {
	if err == nil {
		e.send(last(nil))
		return nil
	}
	if !e.begun {
		return err
	}
	e.send(last(ErrorOf(err)))
	return sent{err}
}
