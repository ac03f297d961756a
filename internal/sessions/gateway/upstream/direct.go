package upstream

import (
	"context"
	"net/http"
	"time"
)

// Direct is a connection whose caller writes the request and reads the response itself. One
// goroutine at a time may use it. End or Resume has to be called once.
type Direct struct {
	pool *Pool
	key  Key
	conn *pooled

	before int64 // bytes that conn had written
}

// Direct takes a kept-alive connection, or dials a new one. The error is that of dial.
func (p *Pool) Direct(ctx context.Context, key Key, dial Dial) (Direct, error) {
	c := p.take(key)
	if c == nil {
		raw, err := dial(ctx)
		if err != nil {
			return Direct{}, err
		}
		c = newConn(raw)
	}
	c.arrived = false
	return Direct{p, key, c, c.Written()}, nil
}

// Send writes the request, or a part of it.
func (d Direct) Send(b []byte) error {
	_, err := d.conn.Write(b)
	return err
}

// Sent reports whether anything was written.
func (d Direct) Sent() bool { return d.conn.Written() != d.before }

// Receive reads what has arrived of the response. It waits for it up to a tenth longer than
// wait. The error is a timeout (net.Error) then, and Receive may be called again.
func (d Direct) Receive(b []byte, wait time.Duration) (int, error) {
	d.conn.await(wait)
	return d.conn.Conn.Read(b)
}

// End keeps the connection for another request if reuse is true and the response has
// arrived whole, and closes it otherwise.
func (d Direct) End(reuse bool) {
	if reuse {
		d.pool.put(d.key, d.conn)
	} else {
		d.conn.Close()
	}
}

// Resume is RoundTrip for a request that was sent with Direct. received is what Receive has
// returned; Resume keeps it. The body of the request is not sent.
func (p *Pool) Resume(req *http.Request, d Direct, received []byte, events Events) (*http.Response, error) {
	d.conn.received = received
	x := p.exchange(req, d.key, d.conn, events)
	events.Connected(&d.conn.CountedConn, true)
	return x.run(func() error { return nil })
}
