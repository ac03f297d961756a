package api

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"holdfast"
	"holdfast/internal/platform/frame"
)

// ForwardService connects to the ports of sessions' containers.
type ForwardService interface {
	// DialPort connects to a TCP port of a session on this node, which the session need
	// not allow to clients. The session is not idle until the stream is closed. Errors:
	// holdfast.ErrNotFound, context.DeadlineExceeded, or an *Error with
	// CodePortRefused.
	DialPort(ctx context.Context, key holdfast.SessionKey, port int) (frame.Stream, error)
}

// ForwardRequest asks for a connection to a port; package frame describes what follows
// it.
type ForwardRequest struct {
	Port int `json:"port"` // 1 to 65535
}

type forwardHandlers struct {
	forwards  ForwardService
	pingEvery time.Duration // 0 is pingEvery
}

func forwardRoutes(f ForwardService, pingEvery time.Duration) []route {
	h := forwardHandlers{f, pingEvery}
	return []route{
		{method: "POST", path: "/v1/sessions/{key}/forward", id: "forwardSession", summary: "Connect to a TCP port of the container, over an upgrade to holdfast-exec/1.",
			access: forAdmin, at: atItsOwner, stream: true, forward: true, request: ForwardRequest{}, status: http.StatusSwitchingProtocols, handle: h.forward},
	}
}

// forward connects to the port like any other request, then takes over the connection.
func (h forwardHandlers) forward(w http.ResponseWriter, r *http.Request) error {
	key, err := keyOf(r)
	if err != nil {
		return err
	}
	var q ForwardRequest
	if err := decode(w, r, &q); err != nil {
		return err
	}
	if q.Port < 1 || q.Port > 65535 {
		return badRequest("port: %d is not between 1 and 65535", q.Port)
	}
	if err := upgrades(r); err != nil {
		return err
	}
	note(r.Context(), "port", q.Port)
	port, err := h.forwards.DialPort(r.Context(), key, q.Port)
	if err != nil {
		return err
	}
	defer port.Close()
	return switchTo(w, func(conn net.Conn, in *bufio.Reader) error { return h.carry(r.Context(), conn, in, port) })
}

// errClientGone reports that the client has disconnected before both directions ended.
var errClientGone = errors.New("the client has disconnected")

// carry joins the client and the port until both directions have ended, one of the two
// is gone, or ctx is done.
func (h forwardHandlers) carry(ctx context.Context, conn net.Conn, in *bufio.Reader, port frame.Stream) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() {
		port.Close()
		_ = conn.SetDeadline(time.Now().Add(lingerLimit))
	})
	defer stop()

	f := frame.NewConn(in, conn)
	over := make(chan error, 1) // the client's direction
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		r := frame.Receiver{Kind: frame.Stdin, To: port, Over: func(err error) {
			over <- err
			if err != nil {
				port.Close() // ends the other direction
			}
		}}
		_ = r.Receive(f, func(frame.Kind, []byte) bool { return false })
		cancel(errClientGone)
	}()
	pinged := make(chan struct{})
	go func() {
		defer close(pinged)
		f.KeepAlive(ctx, cmp.Or(h.pingEvery, pingEvery), func() { cancel(errClientGone) })
	}()

	err := frame.Send(f, frame.Stdout, port)
	select {
	case first := <-over:
		err = cmp.Or(first, err)
	default:
		if err == nil {
			err = awaitOver(ctx, over)
		}
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	exit := ExecExit{Error: ErrorOf(err)}
	_ = f.WriteJSON(frame.Exit, exit) // the client may be gone
	// As in serveExec.
	_ = conn.SetReadDeadline(time.Now().Add(lingerLimit))
	<-heard
	<-pinged
	if errors.Is(err, errClientGone) {
		return nil
	}
	return err
}

// awaitOver waits for the end of the client's direction.
func awaitOver(ctx context.Context, over <-chan error) error {
	select {
	case err := <-over:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
