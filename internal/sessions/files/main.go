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

// Main does one call of an agent on the files of the process's own root, with its rights.
// It returns the exit code of the process: other than 0 if the agent has left.
func Main(in io.Reader, out io.Writer) int {
	if serve(in, out) != nil {
		return 1
	}
	return 0
}

func serve(in io.Reader, out io.Writer) error {
	c := frame.NewConn(in, out)
	if err := c.Write(frame.Ping, nil); err != nil {
		return err
	}
	var q request
	var text line
	for complete := false; !complete; {
		k, p, err := c.Read()
		if err == nil {
			complete, err = text.add(k, p, &q)
		}
		if err != nil {
			return err
		}
	}
	m := message{Over: true}
	done := make(chan error, 1)
	gone := make(chan struct{})
	content, pipe := io.Pipe()
	parts := make(chan part, 1)
	go func() {
		defer close(gone)
		receive(c, pipe, parts)
	}()
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	go func() {
		var err error
		m.Reply, err = answer(ctx, c, q, content, parts)
		done <- err
	}()
	select {
	case err := <-done:
		m.Failed = failedBy(err)
		return tell(c, m)
	case <-gone:
		cancel(errGone)
		pipe.CloseWithError(errGone)
		select { // an incomplete file is removed
		case <-done:
		case <-time.After(giveUp):
		}
		return errGone
	}
}

// receive reads what follows the request, until the agent leaves.
func receive(c *frame.Conn, content *io.PipeWriter, parts chan<- part) {
	for {
		k, p, err := c.Read()
		var one part
		switch {
		case err != nil:
			return
		case k == frame.Stdin && len(p) == 0:
			content.Close()
		case k == frame.Stdin:
			_, _ = content.Write(p) // fails after the end of the call only
		case k == frame.Offset && json.Unmarshal(p, &one) == nil && len(parts) == 0:
			parts <- one
		}
	}
}

// answer does the operation of a request.
func answer(ctx context.Context, c *frame.Conn, q request, content *io.PipeReader, parts <-chan part) (out reply, err error) {
	defer content.Close()
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
	s := streams{in: content, out: c.Writer(frame.Stdout), events: events}
	s.opened = func(ctx context.Context, f holdfast.File) (part, error) {
		if err := tell(c, message{Opened: &f}); err != nil {
			return part{}, err
		}
		select {
		case p := <-parts:
			return p, nil
		case <-ctx.Done():
			return part{}, context.Cause(ctx)
		}
	}
	err = <-root.Go(func() error {
		out, err = op.do(ctx, &tree{root: root, seen: func(int) {}}, p, q, s)
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
