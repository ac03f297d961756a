package docker

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"

	"holdfast/internal/platform/engine"
)

// Logs copies a container's output to w, both streams interleaved. With Follow
// it returns when the container has ended, or with ctx's error.
func (e *Engine) Logs(ctx context.Context, id string, o engine.LogOptions, w io.Writer) error {
	// A container with a terminal has one stream, without frames.
	c, err := e.inspect(ctx, id)
	if err != nil {
		return err
	}
	options := client.ContainerLogsOptions{
		ShowStdout: true,
		ShowStderr: true,
		Follow:     o.Follow,
		Timestamps: o.Timestamps,
	}
	if o.Tail >= 0 {
		options.Tail = strconv.Itoa(o.Tail)
	}
	logs, err := e.api().ContainerLogs(ctx, c.ID, options)
	if err != nil {
		return e.fail(ctx, err, "read the logs of container %s", id)
	}
	defer logs.Close()
	out := &writer{w: w}
	if c.Config != nil && c.Config.Tty {
		_, err = io.Copy(out, logs)
	} else {
		_, err = stdcopy.StdCopy(out, out, logs)
	}
	if out.err != nil {
		return fmt.Errorf("write the logs of container %s: %w", id, out.err)
	}
	return e.fail(ctx, cmp.Or(err, ctx.Err()), "read the logs of container %s", id)
}

// writer remembers the error of w, to distinguish a caller that stops reading from an
// engine that stops. With a nil w it discards everything.
type writer struct {
	w   io.Writer
	err error
}

func (w *writer) Write(p []byte) (int, error) {
	if w.w == nil {
		return len(p), nil
	}
	n, err := w.w.Write(p)
	if err != nil {
		w.err = err
	}
	return n, err
}
