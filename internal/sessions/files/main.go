package files

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	"holdfast"
	"holdfast/internal/platform/frame"
	"holdfast/internal/platform/linux/inroot"
)

// errGone means that the agent's stream has ended.
var errGone = errors.New("the agent has left")

// Main does the calls of an agent on the files of the process's own root, with its rights,
// until the agent leaves. It returns the exit code of the process.
func Main(in io.Reader, out io.Writer) int {
	c := frame.NewConn(in, out)
	if c.Write(frame.Ping, nil) != nil {
		return 1
	}
	calls, gone := make(chan call), make(chan struct{})
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	go func() {
		defer close(gone)
		receive(ctx, c, calls)
	}()
	for {
		select {
		case one := <-calls:
			if serve(ctx, c, one, gone, cancel) != nil {
				return 1
			}
		case <-gone:
			return 0
		}
	}
}

// call is a request with what follows it.
type call struct {
	request
	content *io.PipeReader
	parts   chan part
}

// serve does one call. An error means that the agent has left.
func serve(ctx context.Context, c *frame.Conn, one call, gone <-chan struct{}, cancel context.CancelCauseFunc) error {
	m, done := message{Over: true}, make(chan error, 1)
	go func() {
		var err error
		m.Reply, err = answer(ctx, c, one)
		done <- err
	}()
	select {
	case err := <-done:
		m.Failed = failedBy(err)
		return tell(c, m)
	case <-gone:
		cancel(errGone)
		select { // an incomplete file is removed
		case <-done:
		case <-time.After(giveUp):
		}
		return errGone
	}
}

// receive reads requests and what follows them, until the agent leaves.
func receive(ctx context.Context, c *frame.Conn, calls chan<- call) {
	var text line
	var content *io.PipeWriter
	parts := make(chan part, 1)
	for {
		k, p, err := c.Read()
		var one part
		var next call
		switch {
		case err != nil:
		case k == frame.Stdin && content != nil && len(p) == 0:
			content.Close()
		case k == frame.Stdin && content != nil:
			_, _ = content.Write(p) // fails after the end of the call only
		case k == frame.Offset && json.Unmarshal(p, &one) == nil && len(parts) == 0:
			parts <- one
		default:
			var complete bool
			if complete, err = text.add(k, p, &next.request); !complete || err != nil {
				break
			}
			parts = make(chan part, 1)
			next.content, content = io.Pipe()
			next.parts = parts
			select {
			case calls <- next:
			case <-ctx.Done():
				return
			}
		}
		if err != nil {
			if content != nil {
				content.CloseWithError(errGone)
			}
			return
		}
	}
}

// answer does the operation of a call.
func answer(ctx context.Context, c *frame.Conn, q call) (out reply, err error) {
	defer q.content.Close()
	op, ok := operations()[q.Op]
	p, err := clean(string(q.Path))
	if err != nil || !ok {
		return out, cmp.Or(err, errStrange)
	}
	root, err := inroot.Own()
	if err != nil {
		return out, err
	}
	defer root.Close()
	events, told := make(chan holdfast.FileEvent, maxEvents), make(chan struct{})
	go func() {
		defer close(told)
		for e := range events {
			_ = tell(c, message{Event: &e}) // fails when the agent has left
		}
	}()
	s := streams{in: q.content, out: c.Writer(frame.Stdout), events: events}
	s.opened = func(ctx context.Context, f holdfast.File) (part, error) {
		if err := tell(c, message{Opened: &f}); err != nil {
			return part{}, err
		}
		select {
		case p := <-q.parts:
			return p, nil
		case <-ctx.Done():
			return part{}, context.Cause(ctx)
		}
	}
	err = <-root.Go(func() error {
		out, err = op.do(ctx, &tree{root: root, seen: func(int) {}}, p, q.request, s)
		return explain(op.verb, p, err)
	})
	close(events)
	<-told
	return out, err
}

// tell sends a message. One goroutine at a time may send.
func tell(c *frame.Conn, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return c.Write(frame.Event, append(b, '\n'))
}
