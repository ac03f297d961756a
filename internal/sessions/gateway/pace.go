package gateway

import (
	"errors"
	"io"
	"math"
	"net/http"
	"strings"
	"sync"
	"time"
)

// errSlowBody ends a request whose body arrives too slowly.
var errSlowBody = errors.New("the request's body arrived too slowly")

const (
	// minBody is how many bytes of a body have to arrive while the gateway waits for
	// them for Config.BodyTimeout: with the default 17 bytes per second.
	minBody = 1 << 10

	// streamFactor multiplies Config.WriteTimeout for event streams: their clients may
	// rest, and have to be told as little as possible.
	streamFactor = 6
)

// isStream reports whether a content type is that of a stream of messages: its ends
// may be silent, and may hold each other back, for long.
func isStream(h http.Header) bool {
	kind := strings.ToLower(h.Get("Content-Type"))
	return strings.HasPrefix(kind, "text/event-stream") || strings.HasPrefix(kind, "application/grpc") || strings.HasPrefix(kind, "application/connect")
}

// deadlines are those of one request (http.ResponseController).
type deadlines interface {
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
}

// pace ends a request whose client is too slow. Only the time in which the gateway
// waits for the client counts: in a read of the body, or in a write of the response. A
// server that is silent, or reads slowly, does not make its client slow. One timer
// serves each request; a read or a write sets none.
type pace struct {
	client deadlines
	timer  *time.Timer

	mu       sync.Mutex
	over     bool
	slow     bool // the body was too slow
	cut      bool // the response was too slow
	body     waiting
	response waiting
}

// waiting is the time in which the gateway has waited for the client, in one
// direction.
type waiting struct {
	limit  time.Duration // 0: none
	least  int           // bytes that end the time counted so far
	since  time.Time     // start of the call in progress; zero: none
	waited time.Duration
	bytes  int
}

func (w *waiting) begin(now time.Time) { w.since = now }

func (w *waiting) end(now time.Time, n int) {
	w.waited += now.Sub(w.since)
	w.since = time.Time{}
	if w.bytes += n; w.bytes >= w.least {
		w.waited, w.bytes = 0, 0
	}
}

// left returns how long the gateway may still wait for the client.
func (w *waiting) left(now time.Time) time.Duration {
	if w.limit == 0 {
		return math.MaxInt64
	}
	left := w.limit - w.waited
	if !w.since.IsZero() {
		left -= now.Sub(w.since)
	}
	return left
}

// next returns when to look again.
func (w *waiting) next(now time.Time) time.Duration {
	return max(w.left(now), w.limit/4)
}

// start begins to watch a request.
func (p *pace) start(c Config, client deadlines, r *http.Request) {
	p.client = client
	p.response.limit = c.WriteTimeout
	if r.ContentLength != 0 && !isStream(r.Header) {
		p.body = waiting{limit: c.BodyTimeout, least: minBody}
	}
	p.mu.Lock() // check may begin at once
	defer p.mu.Unlock()
	p.timer = time.AfterFunc(min(p.body.next(time.Time{}), p.response.next(time.Time{})), p.check)
}

// check ends a direction that is too slow.
func (p *pace) check() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	now, past := time.Now(), time.Unix(1, 0)
	if p.body.left(now) <= 0 {
		p.slow, p.body.limit = true, 0
		_ = p.client.SetReadDeadline(past) // supported by every server of the gateway
	}
	if p.response.left(now) <= 0 {
		p.over, p.cut = true, true
		_ = p.client.SetWriteDeadline(past)
		return
	}
	p.timer.Reset(min(p.body.next(now), p.response.next(now)))
}

// stop ends the watch, and reports whether the response was cut. It may be called
// again.
func (p *pace) stop() (cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	p.timer.Stop()
	return p.cut
}

// slowBody reports whether the body was too slow. net/http then ends the context of an
// HTTP/1 request, so its error may be another one.
func (p *pace) slowBody() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.slow
}

// responds adjusts the limits when the response begins. From then on the body may be
// one direction of a conversation.
func (p *pace) responds(h http.Header) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.body.limit = 0
	if isStream(h) {
		p.response.limit *= streamFactor
	}
}

// begin and end enclose a call that may wait for the client.
func (p *pace) begin(w *waiting) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.begin(time.Now())
}

func (p *pace) end(w *waiting, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.end(time.Now(), n)
}

// pacedBody is the body of a request.
type pacedBody struct {
	io.ReadCloser
	pace *pace
}

func (b pacedBody) Read(p []byte) (int, error) {
	b.pace.begin(&b.pace.body)
	n, err := b.ReadCloser.Read(p)
	b.pace.end(&b.pace.body, n)
	return n, err
}
