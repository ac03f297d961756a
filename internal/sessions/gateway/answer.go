package gateway

import (
	"net/http"
	"time"
)

// answer is the ResponseWriter of a request.
type answer struct {
	http.ResponseWriter
	gateway   *Gateway
	unflushed bool // bytes may wait in net/http

	// Without a pace, for a request of another node, the rest is not used.
	pace     *pace
	hijacked bool
}

// newAnswer returns the answer to a client's request. Call end when the request ends.
func (g *Gateway) newAnswer(w http.ResponseWriter, r *http.Request) *answer {
	a := &answer{ResponseWriter: w, gateway: g, pace: &pace{}}
	a.pace.start(g.cfg, http.NewResponseController(w), r)
	if r.ContentLength != 0 {
		r.Body = pacedBody{r.Body, a.pace}
	}
	return a
}

// end limits what net/http does after the handler: it writes the rest of the response,
// and reads the rest of an HTTP/1 body.
func (a *answer) end(r *http.Request) {
	cut := a.pace.stop()
	if cut {
		a.gateway.metrics.slowReaders.Inc()
	}
	if cut || a.hijacked {
		return
	}
	if a.unflushed || r.ProtoMajor == 1 {
		_ = a.pace.client.SetWriteDeadline(time.Now().Add(a.gateway.cfg.WriteTimeout))
	}
	if r.ProtoMajor == 1 && r.ContentLength != 0 {
		_ = a.pace.client.SetReadDeadline(time.Now().Add(unreadTime))
	}
}

// Unwrap serves http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// WriteHeader drops a 100 Continue: net/http sends that itself when the body is
// first read, to clients that wait for it. From interim responses, which the
// proxy copies, it removes the reserved headers.
func (a *answer) WriteHeader(status int) {
	if status == http.StatusContinue {
		return
	}
	if status < 200 {
		dropReserved(a.Header())
	} else {
		a.gateway.LastAnswer(a)
		if a.pace != nil {
			a.pace.responds(a.Header())
		}
	}
	a.unflushed = true
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(b []byte) (int, error) {
	a.unflushed = true
	if a.pace == nil {
		return a.ResponseWriter.Write(b)
	}
	a.pace.begin(&a.pace.response)
	n, err := a.ResponseWriter.Write(b)
	a.pace.end(&a.pace.response, n)
	return n, err
}

// FlushError serves http.ResponseController.
func (a *answer) FlushError() error {
	if a.pace != nil {
		a.pace.begin(&a.pace.response)
		defer a.pace.end(&a.pace.response, 0)
	}
	err := http.NewResponseController(a.ResponseWriter).Flush()
	a.unflushed = err != nil
	return err
}
