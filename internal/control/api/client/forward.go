package client

import (
	"bufio"
	"context"
	"fmt"
	"io"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/platform/frame"
)

// Port is a connection to a TCP port of a session's container. Call Carry or Close.
type Port struct {
	client *Client
	conn   io.ReadWriteCloser
}

// DialPort connects to a TCP port of a session. Errors: holdfast.ErrNotFound if no node
// has the session, or an *api.Error with api.CodePortRefused.
func (c *Client) DialPort(ctx context.Context, key holdfast.SessionKey, port int) (*Port, error) {
	conn, err := c.upgrade(ctx, sessionPath(key, "/forward"), api.ForwardRequest{Port: port})
	if err != nil {
		return nil, err
	}
	return &Port{c, conn}, nil
}

// Close ends the connection.
func (p *Port) Close() error { return p.conn.Close() }

// Carry joins the port and a local stream until both directions have ended, one of the
// two is gone, or ctx is done. It closes the port, and the caller closes the stream; if ctx is
// done, Carry does that too, because the local program may not read. The error tells that the
// connection did not end by itself.
func (p *Port) Carry(ctx context.Context, local frame.Stream) error {
	defer p.conn.Close()
	stop := context.AfterFunc(ctx, func() { p.conn.Close(); local.Close() })
	defer stop()
	f := frame.NewConn(bufio.NewReader(p.conn), p.conn)
	go func() {
		if frame.Send(f, frame.Stdin, local) != nil {
			p.conn.Close() // the local stream broke, or the agent has gone
		}
	}()
	var result, broke error
	r := frame.Receiver{Kind: frame.Stdout, To: local, Over: func(err error) {
		if broke = err; err != nil {
			p.conn.Close()
		}
	}}
	err := r.Receive(f, func(k frame.Kind, text []byte) bool {
		if k == frame.Exit {
			_, result = exitOf(text)
		}
		return k == frame.Exit
	})
	switch {
	case broke != nil:
		return fmt.Errorf("the local connection: %w", broke)
	case err != nil:
		return p.client.lost(ctx, err)
	}
	return result
}
