package upstream

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Events receives what happens to a request, in the goroutine of RoundTrip.
type Events interface {
	// Connected reports the connection, before anything of the request is written to it.
	// reused means that it carried other requests before.
	Connected(c *CountedConn, reused bool)
	// Answered reports the first byte of a response.
	Answered()
	// Interim reports a response below 200 other than 101. The header may be changed.
	Interim(status int, header http.Header)
}

// closedTimeout is how long a response is awaited after the rest of a request could not be
// written.
const closedTimeout = time.Second

// maxInterim limits the 1xx responses before the final one.
const maxInterim = 8

var (
	errHeaderTooLong = errors.New("the response's header is too long")
	errInterimOnly   = errors.New("the server sends interim responses only")
	errNotContinued  = errors.New("the server answered without the request's body")
)

// RoundTrip sends a request on a kept-alive connection or a new one, and returns the
// response when its header has arrived. The caller reads the body, which implements Ahead,
// to its end, or closes it. The body of the request may be read until then, and is not
// closed. If the request's context is done, the error is that of the context. After an
// error the body of the request is no longer read.
//
// A response 101 is returned without its connection, which is closed.
func (p *Pool) RoundTrip(req *http.Request, key Key, dial Dial, events Events) (*http.Response, error) {
	ctx := req.Context()
	c := p.take(key)
	reused := c != nil
	if !reused {
		raw, err := dial(ctx)
		if err != nil {
			return nil, err
		}
		c = newConn(raw)
	}
	events.Connected(&c.CountedConn, reused)
	x := p.exchange(req, key, c, events)
	return x.run(x.begin)
}

// exchange returns an exchange on a connection, which is closed when the request's context is
// done.
func (p *Pool) exchange(req *http.Request, key Key, c *pooled, events Events) *exchange {
	c.limit, c.arrived = int64(p.cfg.MaxHeaderBytes), false
	return &exchange{pool: p, key: key, conn: c, before: c.Written(), req: req, events: events,
		unhook: context.AfterFunc(req.Context(), func() { c.Close() })}
}

// run sends the request by send and returns the response. After an error it waits until the
// request's body is no longer read.
func (x *exchange) run(send func() error) (*http.Response, error) {
	resp, err := x.do(send)
	if err != nil {
		x.end(false)
		if x.sent != nil {
			<-x.sent
		}
		return nil, x.explain(err)
	}
	return resp, nil
}

// exchange is one request and its response.
type exchange struct {
	pool   *Pool
	key    Key
	conn   *pooled
	before int64 // bytes that conn had written
	req    *http.Request
	events Events
	unhook func() bool
	in     *bufio.Reader

	sent      chan struct{} // closed when the body was written; nil: the request has none
	sendErr   error         // valid once sent is closed
	bodyErr   error         // of reading the body; valid once sent is closed
	proceed   chan struct{} // closed when the body may be written; nil: it need not wait
	proceeded sync.Once
	refused   bool // the body may not be written; valid once proceed is closed

	once sync.Once // see end
}

// begin sends a request without a body, or begins to send one with a body.
func (x *exchange) begin() error {
	if x.req.Body == nil || x.req.Body == http.NoBody {
		return x.write(x.req)
	}
	x.sent = make(chan struct{})
	if strings.EqualFold(x.req.Header.Get("Expect"), "100-continue") {
		x.proceed = make(chan struct{})
	}
	x.conn.unlimited() // until the body was sent
	go x.send()
	return nil
}

func (x *exchange) do(send func() error) (*http.Response, error) {
	if err := send(); err != nil {
		return nil, err
	}
	if x.sent == nil {
		x.conn.await(x.pool.cfg.ResponseTimeout)
	}
	x.in = readers.Get().(*bufio.Reader)
	x.in.Reset(x.conn)
	resp, err := x.header()
	if x.proceed != nil {
		x.open(err != nil || resp.StatusCode >= 300)
	}
	if err != nil {
		return nil, err
	}
	b := &body{resp.Body, x, resp}
	x.conn.arrive(b.complete())
	x.conn.limit = math.MaxInt64
	switch {
	case resp.StatusCode == http.StatusSwitchingProtocols:
		x.end(false)
	case resp.Body == http.NoBody:
		x.end(x.reusable(resp))
	default:
		resp.Body = b
	}
	return resp, nil
}

// send writes a request with a body.
func (x *exchange) send() {
	defer close(x.sent)
	x.sendErr = x.write(x.req)
	if x.bodyErr != nil && x.bodyErr != errNotContinued {
		x.conn.Close() // the request is incomplete
		return
	}
	if x.sendErr == nil || x.bodyErr == errNotContinued {
		x.conn.await(x.pool.cfg.ResponseTimeout)
		return
	}
	// A server may answer and close its connection before it has read the body. The
	// response can still be read then.
	if x.conn.Written() == x.before {
		x.conn.Close()
	}
	x.conn.await(closedTimeout)
}

func (x *exchange) write(req *http.Request) error {
	w := writers.Get().(*bufio.Writer)
	w.Reset(x.conn)
	defer func() {
		w.Reset(nil)
		writers.Put(w)
	}()
	if x.sent != nil {
		watched := *req
		watched.Body = &source{req.Body, x, w}
		req = &watched
	}
	if err := req.Write(w); err != nil {
		return err
	}
	return w.Flush()
}

// header returns the final response, or 101.
func (x *exchange) header() (*http.Response, error) {
	if _, err := x.in.Peek(1); err != nil {
		return nil, err
	}
	x.events.Answered()
	return ReadResponse(x.in, x.req, func(resp *http.Response) {
		if resp.StatusCode == http.StatusContinue && x.proceed != nil {
			x.open(false)
		}
		x.events.Interim(resp.StatusCode, resp.Header)
	})
}

// ReadResponse reads the header of the final response to req, or of a 101. It calls interim with
// each response before that one.
func ReadResponse(in *bufio.Reader, req *http.Request, interim func(*http.Response)) (*http.Response, error) {
	for range maxInterim {
		resp, err := http.ReadResponse(in, req)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode >= 200 || resp.StatusCode == http.StatusSwitchingProtocols {
			return resp, nil
		}
		interim(resp)
	}
	return nil, errInterimOnly
}

// open decides whether a body that waits is written. Only the first call has an effect.
func (x *exchange) open(refused bool) {
	x.proceeded.Do(func() {
		x.refused = refused
		close(x.proceed)
	})
}

// source is the body of a request while it is written.
type source struct {
	io.ReadCloser
	x *exchange
	w *bufio.Writer // has the header
}

func (b *source) Read(p []byte) (n int, err error) {
	if err = b.wait(); err == nil {
		n, err = b.ReadCloser.Read(p)
	}
	if err != nil && err != io.EOF {
		b.x.bodyErr = err
	}
	return n, err
}

// wait returns when the body may be written.
func (b *source) wait() error {
	x := b.x
	if x.proceed == nil {
		return nil
	}
	select {
	case <-x.proceed:
	default:
		if err := b.w.Flush(); err != nil {
			return err
		}
		timer := time.NewTimer(x.pool.cfg.ContinueTimeout)
		defer timer.Stop()
		select {
		case <-x.proceed:
		case <-timer.C:
			x.open(false)
		}
	}
	if x.refused {
		return errNotContinued
	}
	return nil
}

// reusable reports whether the connection may carry another request after this response.
func (x *exchange) reusable(resp *http.Response) bool {
	if resp.Close || x.req.Close || x.in.Buffered() > 0 {
		return false
	}
	if x.sent == nil {
		return true
	}
	select {
	case <-x.sent:
		return x.sendErr == nil
	default:
		return false // the body is still being written
	}
}

// end gives the connection back, or closes it.
func (x *exchange) end(reuse bool) {
	x.once.Do(func() {
		if x.unhook() && reuse {
			x.pool.put(x.key, x.conn)
		} else {
			x.conn.Close()
		}
		if x.in != nil {
			x.in.Reset(nil)
			readers.Put(x.in)
			x.in = nil
		}
	})
}

// explain returns the context's error for what the end of the context has caused.
func (x *exchange) explain(err error) error {
	if done := x.req.Context().Err(); done != nil {
		return done
	}
	switch {
	case x.bodyErr != nil && x.bodyErr != errNotContinued:
		return x.bodyErr
	case x.sendErr != nil && x.bodyErr == nil && !isTimeout(err):
		return x.sendErr // the cause of what was read
	}
	if x.conn.limit <= 0 {
		return fmt.Errorf("%w: over %d bytes", errHeaderTooLong, x.pool.cfg.MaxHeaderBytes)
	}
	return err
}

func isTimeout(err error) bool {
	e, ok := errors.AsType[net.Error](err)
	return ok && e.Timeout()
}

// Ahead is implemented by the body of a response.
type Ahead interface {
	// Ready reports whether the next Read returns without waiting for the server.
	Ready() bool
}

// body is the body of a response.
type body struct {
	io.ReadCloser
	x    *exchange
	resp *http.Response
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.x.end(b.x.in != nil && b.x.reusable(b.resp))
	} else if err != nil {
		b.x.end(false)
		if done := b.x.req.Context().Err(); done != nil {
			err = done
		}
	}
	return n, err
}

// Close closes the connection, unless the body was read to its end.
func (b *body) Close() error {
	b.x.end(false)
	return nil
}

// lastChunk ends a chunked body without trailers (RFC 9112, 7.1).
var lastChunk = []byte("\r\n0\r\n\r\n")

// Ready implements Ahead. Of a body of unknown length all has to be there, because a part
// of a chunk's header may be the last bytes that have arrived.
func (b *body) Ready() bool {
	if in := b.x.in; in != nil && b.resp.ContentLength >= 0 {
		return in.Buffered() > 0
	}
	return b.complete()
}

// complete reports whether all that has not been read of the body has arrived. It may return
// false nevertheless.
func (b *body) complete() bool {
	in := b.x.in
	if in == nil || b.resp.Body == http.NoBody {
		return true
	}
	if b.resp.ContentLength >= 0 {
		return int64(in.Buffered()) >= b.resp.ContentLength
	}
	buffered, _ := in.Peek(in.Buffered())
	return bytes.HasSuffix(buffered, lastChunk)
}

var (
	readers = sync.Pool{New: func() any { return bufio.NewReader(nil) }}
	writers = sync.Pool{New: func() any { return bufio.NewWriter(nil) }}
)
