package mcp

import (
	"context"
	"fmt"
	"io"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	maxMessage = 1 << 20         // bytes of one message to the server
	endLimit   = 5 * time.Second // for running calls at the end
)

// Program is the name of the caller in the agent's audit log.
const Program = "mcp"

// Serve speaks the protocol on in and out, a JSON message a line, until in ends or ctx
// is done; then it gives up the running calls and returns nil. It does not close in: a
// read from it may go on.
func (s *Server) Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	calls, giveUp := context.WithCancel(ctx)
	defer giveUp()
	to := s.serverFor(access{admin: true, write: s.o.AllowWrite, via: Program})
	to.AddReceivingMiddleware(guard(calls))
	ended := make(chan error, 1)
	// The SDK ends the calls at the end of in. An answer that is not read may block it.
	input := &atEnd{in, func() { time.AfterFunc(endLimit, giveUp) }}
	go func() {
		ended <- to.Run(calls, &sdk.IOTransport{Reader: input, Writer: unclosed{out}, MaxLineLength: maxMessage})
	}()
	select {
	case err := <-ended:
		if calls.Err() != nil {
			err = nil
		}
		return err
	case <-calls.Done():
	}
	select {
	case <-ended:
	case <-time.After(endLimit):
	}
	return nil
}

// guard ends the calls of a server with a context, and keeps the process alive if one
// of them panics.
func guard(over context.Context) sdk.Middleware {
	return func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, r sdk.Request) (result sdk.Result, err error) {
			ctx, cancel := context.WithCancel(ctx)
			defer context.AfterFunc(over, cancel)()
			defer cancel()
			defer func() {
				if why := recover(); why != nil {
					result, err = nil, fmt.Errorf("%s failed: %v", clip(method, maxName), why)
				}
			}()
			if c, ok := r.(*sdk.CallToolRequest); ok && string(c.Params.Arguments) == "null" {
				c.Params.Arguments = nil // the SDK (v1.8.0) panics on null if an argument has a default
			}
			return next(ctx, method, r)
		}
	}
}

// atEnd calls ended at the end of a reader.
type atEnd struct {
	io.Reader
	ended func()
}

func (r *atEnd) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil {
		r.ended()
	}
	return n, err
}

// Close implements io.Closer.
func (*atEnd) Close() error { return nil }

type unclosed struct{ io.Writer }

func (unclosed) Close() error { return nil }
