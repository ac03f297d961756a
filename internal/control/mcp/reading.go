package mcp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
	"holdfast/internal/platform/frame"
	"holdfast/internal/platform/tasks"
)

// commandOutput is a part of a command's output, and its state.
type commandOutput struct {
	ID       string `json:"id"`
	Running  bool   `json:"running" jsonschema:"it had not ended"`
	ExitCode int    `json:"exit_code" jsonschema:"of a command that has ended"`
	Output   string `json:"output" jsonschema:"standard output and standard error together"`
	Offset   int64  `json:"offset" jsonschema:"position of the first byte of output"`
	Next     int64  `json:"next_offset" jsonschema:"position after the last byte of output"`
	Cut      string `json:"cut,omitempty" jsonschema:"which bytes are not in output"`
}

// reading reads a part of a detached command's output.
type reading struct {
	c     *client.Client
	key   holdfast.SessionKey
	id    string
	most  int   // bytes to return
	tail  bool  // the last ones and not the first ones
	until int64 // stop at this position; 0: at the end
	next  int64 // position of the next byte
	text  []byte
	lost  int64 // bytes that the agent no longer had
	full  bool  // there is enough
}

// errEnough ends a reading that has what it wants.
var errEnough = errors.New("enough")

// again is the time between two tries to reach an agent that is replaced.
const again = 200 * time.Millisecond

// run reads until the command has ended, there is enough, or the time is up.
func (r *reading) run(ctx context.Context, wait time.Duration) (commandOutput, error) {
	within, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	enough, stop := context.WithCancelCause(within)
	defer stop(nil)
	code, err := r.attach(enough, stop)
	for errors.Is(err, client.ErrUnreachable) && enough.Err() == nil {
		_ = tasks.Sleep(enough, again)
		code, err = r.attach(enough, stop)
	}
	running := false
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return commandOutput{}, err
	case enough.Err() != nil:
		running, code = r.runs(ctx)
	default:
		return commandOutput{}, err
	}
	return r.result(running, code), nil
}

func (r *reading) attach(ctx context.Context, stop context.CancelCauseFunc) (int, error) {
	return r.c.Attach(ctx, r.key, r.id, api.AttachRequest{Offset: r.next}, api.Exec{Stdout: r, Stderr: r}, func(p frame.Position) {
		switch {
		case r.full:
		case p.Lost > 0 && r.tail:
			r.text, r.next = r.text[:0], p.Offset
		case p.Lost > 0 && len(r.text) > 0:
			r.full = true // the next call begins behind the gap
		default:
			r.next, r.lost = p.Offset, r.lost+p.Lost
			r.full = !r.tail && len(r.text) >= r.most || r.until > 0 && r.next >= r.until
		}
		if r.full {
			stop(errEnough)
		}
	})
}

// Write keeps the first or the last bytes.
func (r *reading) Write(p []byte) (int, error) {
	if r.full {
		return len(p), nil
	}
	r.text = append(r.text, p...)
	if spare := len(r.text) - 2*r.most; r.tail && spare > 0 {
		r.text = append(r.text[:0], r.text[len(r.text)-r.most:]...)
	}
	return len(p), nil
}

// runs asks whether the command runs. If that is unknown it says so by running.
func (r *reading) runs(ctx context.Context) (running bool, code int) {
	all, err := r.c.Commands(ctx, r.key)
	if err != nil {
		return true, 0
	}
	for _, one := range all {
		if one.ID == r.id {
			return one.Running(), one.ExitCode
		}
	}
	return false, -1
}

func (r *reading) result(running bool, code int) commandOutput {
	out := commandOutput{ID: r.id, Running: running, ExitCode: code, Next: r.next}
	began := r.next - int64(len(r.text))
	text := r.text
	switch over := len(text) - r.most; {
	case over > 0 && r.tail:
		text = text[over:]
	case over > 0:
		text = text[:r.most]
	}
	if r.tail {
		out.Offset = r.next - int64(len(text))
		if before := out.Offset; before > 0 {
			out.Cut = fmt.Sprintf("%d bytes before offset %d; session_output reads them if they are kept", before, out.Offset)
		}
	} else {
		out.Offset, out.Next = began, began+int64(len(text))
		if r.lost > 0 {
			out.Cut = fmt.Sprintf("%d bytes before offset %d are no longer kept", r.lost, out.Offset)
		}
	}
	out.Output = visible(string(text))
	return out
}
