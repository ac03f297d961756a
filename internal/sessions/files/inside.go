package files

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"

	"holdfast"
	"holdfast/internal/platform/frame"
)

// A call in a container has frames of package frame. Main sends a Ping when it runs. Then
// the agent sends one request after the other. Requests and answers are JSON with a newline,
// in one Event or several. Contents are Stdin and Stdout; an empty Stdin is the end. An Offset
// is the part of a file that is read. If the agent's stream ends, so does the call.
//
// The container may replace Main, so the agent checks and bounds each answer.

// message is an answer. The one with Over is the last.
type message struct {
	Opened *holdfast.File      `json:",omitempty"`
	Event  *holdfast.FileEvent `json:",omitempty"`
	Reply  reply
	Failed *failure `json:",omitempty"`
	Over   bool     `json:",omitempty"`
}

// Bounds of calls in a container.
const (
	maxMessage = 16 << 20 // bytes: names of a list have maxListBytes, and JSON has 6 for one
	maxText    = 1000     // bytes of an error
)

// inside does a call in the container of a session.
func (f *Files) inside(ctx context.Context, key holdfast.SessionKey, place Place, p string, q request, s streams) (out reply, err error) {
	h, err := f.helper(ctx, key, place)
	if err == nil {
		out, err = (&remote{f, p, q, s}).call(ctx, h)
		f.keep(key, h)
	}
	if told, ok := errors.AsType[*failure](err); ok {
		return out, told.explained()
	}
	return out, explain(operations()[q.Op].verb, p, err)
}

// remote is one call in a container.
type remote struct {
	f *Files
	p string
	q request
	s streams
}

func (r *remote) call(ctx context.Context, h *helper) (reply, error) {
	defer context.AfterFunc(ctx, func() { h.end(context.Cause(ctx)) })()
	h.clean = false
	if err := tell(h.conn, r.q); err != nil {
		return reply{}, cmp.Or(context.Cause(h.own), err)
	}
	sent := make(chan struct{})
	if r.s.in == nil {
		close(sent)
	} else {
		go func() {
			defer close(sent)
			if err := frame.Send(h.conn, frame.Stdin, counted{r.s.in, r.f.hasWritten}); err != nil {
				h.end(err) // a file that is incomplete must not appear
			}
		}()
	}
	m, err := r.receive(ctx, h.conn)
	select {
	case <-sent:
		h.clean = err == nil
	default:
	}
	if m.Failed != nil {
		return m.Reply, m.Failed
	}
	return m.Reply, cmp.Or(context.Cause(h.own), err)
}

// counted counts what is read.
type counted struct {
	io.Reader
	seen func(int)
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.seen(n)
	return n, err
}

// errStrange means that the answers are not those of Main.
var errStrange error = &Error{"the program for files in the container gives answers that are not valid", holdfast.ErrBadFile}

// receive reads answers up to the last one.
func (r *remote) receive(ctx context.Context, c *frame.Conn) (message, error) {
	var text line
	left := int64(-1) // bytes that may come, below 0 before the file is open
	for {
		k, p, err := c.Read()
		switch {
		case err != nil:
			return message{}, err
		case k == frame.Stdout && int64(len(p)) <= left && r.s.out != nil:
			left -= int64(len(p))
			if _, err := r.s.out.Write(p); err != nil {
				return message{}, err
			}
			continue
		}
		var m message
		complete, err := text.add(k, p, &m)
		if err != nil || complete && !m.check(r.p, r.q) {
			return message{}, errStrange
		}
		switch {
		case !complete:
		case m.Over:
			return m, nil
		case m.Event != nil && r.s.events != nil:
			select {
			case r.s.events <- *m.Event:
			case <-ctx.Done():
				return message{}, context.Cause(ctx)
			}
		case m.Opened != nil && r.s.opened != nil && left < 0:
			part, err := r.s.opened(ctx, *m.Opened)
			if err == nil {
				err = c.WriteJSON(frame.Offset, part)
			}
			if err != nil {
				return message{}, err
			}
			if left = max(0, part.Count); r.q.Op == "pack" {
				left = maxArchive
			}
		default:
			return message{}, errStrange
		}
	}
}

// line is the begin of a message.
type line []byte

// add adds a frame, and reports whether the message is complete: then v has it.
func (l *line) add(k frame.Kind, p []byte, v any) (complete bool, err error) {
	if k != frame.Event || len(p) == 0 || len(*l)+len(p) > maxMessage {
		return false, errStrange
	}
	if *l = append(*l, p...); p[len(p)-1] != '\n' {
		return false, nil
	}
	err = json.Unmarshal(*l, v)
	*l = nil
	return true, err
}

// maxArchive bounds an archive in bytes. The caller reads it as it comes.
const maxArchive = 1 << 62

// failure is an error of a call.
type failure struct{ Text, Kind, Hint string }

func (f *failure) Error() string { return f.Text }

// kinds are the errors that callers test for.
func errorKinds() map[string]error {
	return map[string]error{"found": holdfast.ErrNotFound, "exists": holdfast.ErrExists, "bad": holdfast.ErrBadFile, "busy": holdfast.ErrBusy, "space": holdfast.ErrNoSpace}
}

// failedBy returns the failure for an error that was explained.
func failedBy(err error) *failure {
	if err == nil {
		return nil
	}
	f := &failure{Text: err.Error(), Hint: holdfast.HintOf(err)}
	for name, kind := range errorKinds() {
		if errors.Is(err, kind) {
			f.Kind = name
		}
	}
	return f
}

// explained returns the error for users.
func (f *failure) explained() error {
	text := printable(f.Text)
	kind, ok := errorKinds()[f.Kind]
	if !ok {
		return errors.New(text)
	}
	err := error(&Error{text, kind})
	for _, r := range reasons() { // no other hint: users may follow it
		if f.Hint != "" && r.hint == f.Hint {
			return holdfast.WithHint(err, r.hint)
		}
	}
	return err
}
