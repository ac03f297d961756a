package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"

	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
)

// hostParts are the parts of the API that this host has without an agent. close
// may be nil.
type hostParts struct {
	api.Parts
	close func() error
}

// agentOrHost calls do with a client of the agent. If no agent answers, and the user
// has not named one by its socket or address, it calls do with a client of this
// host's parts, which without returns. without gets the error of the agent's client.
func (a *app) agentOrHost(ctx context.Context, without func(h Host, unreachable error) (hostParts, error), do func(*client.Client) error) error {
	c, err := a.agent()
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Version(ctx)
	switch {
	case err == nil:
		return do(c)
	case !a.hostMayAnswer(ctx, err):
		return err
	}
	h, hostErr := a.deps.Host(ctx)
	if hostErr != nil {
		return errors.Join(err, hostErr)
	}
	p, err := without(h, err)
	if err != nil {
		return err
	}
	return withParts(p, do)
}

// hostMayAnswer reports whether, after an error of the agent's client, a command may
// use this host without an agent: no agent answers, and the user has not named one by
// its socket or address.
func (a *app) hostMayAnswer(ctx context.Context, err error) bool {
	return errors.Is(err, client.ErrUnreachable) && ctx.Err() == nil && a.remoteURL() == "" && a.socket == ""
}

// withParts serves the API of some parts in this process, and calls do with a client
// of it: a command works with and without an agent in the same way.
func withParts(p hostParts, do func(*client.Client) error) error {
	l := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
	c, err := client.New(client.Options{Dial: l.dial, Name: "this host"})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	log := slog.New(slog.DiscardHandler)
	go func() { ended <- api.Serve(ctx, l, api.New(p.Parts, api.Options{Admin: true}), log) }()
	err = do(c)
	c.Close()
	cancel()
	err = errors.Join(err, <-ended)
	if p.close != nil {
		err = errors.Join(err, p.close())
	}
	return err
}

// pipes is a net.Listener of connections within this process.
type pipes struct {
	conns chan net.Conn
	done  chan struct{} // closed by Close, which is called once
}

func (l *pipes) dial(ctx context.Context) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case l.conns <- far:
		return near, nil
	case <-l.done:
		return nil, fmt.Errorf("this host's API: %w", os.ErrClosed)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept implements net.Listener.
func (l *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *pipes) Close() error {
	close(l.done)
	return nil
}

// Addr implements net.Listener.
func (l *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "this host", Net: "unix"} }
