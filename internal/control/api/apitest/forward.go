package apitest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/platform/frame"
)

// DialPort implements api.ForwardService with these ports:
//
//	7   echo: sends back what it gets, and ends after the end of its input
//	13  sends "now" and ends its side, then reads its input to the end
//	19  sends the same bytes without end
//	20  breaks the connection after the first byte
//
// Nothing listens on the other ports.
func (b *Backend) DialPort(ctx context.Context, key holdfast.SessionKey, port int) (frame.Stream, error) {
	if _, err := b.Session(ctx, key); err != nil {
		return nil, err
	}
	serve := map[int]func(*net.TCPConn){
		7: func(c *net.TCPConn) { _, _ = io.Copy(c, c) },
		13: func(c *net.TCPConn) {
			_, _ = io.WriteString(c, "now")
			_ = c.CloseWrite()
			_, _ = io.Copy(io.Discard, c)
		},
		19: func(c *net.TCPConn) {
			for page := make([]byte, 1<<16); ; {
				if _, err := c.Write(page); err != nil {
					return
				}
			}
		},
		20: func(c *net.TCPConn) {
			_, _ = c.Read(make([]byte, 1))
			_ = c.SetLinger(0)
		},
	}[port]
	if serve == nil {
		return nil, &api.Error{Code: api.CodePortRefused, Message: fmt.Sprintf("session %s: nothing listens on port %d", key, port)}
	}
	client, server, err := pair(ctx)
	if err != nil {
		return nil, err
	}
	go func() {
		defer server.Close()
		serve(server)
	}()
	return client, nil
}

// pair returns the two ends of a TCP connection.
func pair(ctx context.Context) (client, server *net.TCPConn, err error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer ln.Close()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", ln.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	s, err := ln.Accept()
	if err != nil {
		return nil, nil, errors.Join(err, c.Close())
	}
	return c.(*net.TCPConn), s.(*net.TCPConn), nil
}
