package client

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"holdfast"
	"holdfast/internal/control/api"
)

// Logs copies a session's output to w until the output ends. With Follow it ends with
// the container or with ctx.
func (c *Client) Logs(ctx context.Context, key holdfast.SessionKey, o api.LogOptions, w io.Writer) error {
	q := url.Values{"tail": {strconv.Itoa(o.Tail)}}
	if o.Follow {
		q.Set("follow", "true")
	}
	if o.Timestamps {
		q.Set("timestamps", "true")
	}
	resp, err := c.open(ctx, http.MethodGet, sessionPath(key, "/logs?"+q.Encode()), nil)
	if err != nil {
		return err
	}
	return c.copyBody(ctx, resp, w)
}

// target records that the writer failed, not the agent.
type target struct {
	w   io.Writer
	err error
}

func (t *target) Write(p []byte) (int, error) {
	n, err := t.w.Write(p)
	if err != nil {
		t.err = err
	}
	return n, err
}

// Drain hands over everything that a node owns, and calls progress after each step. A
// node of "" is the agent's own. An error may come with a report of the steps that were
// done. The drain continues when ctx is done.
func (c *Client) Drain(ctx context.Context, node holdfast.NodeID, q api.DrainRequest, progress func(holdfast.Step)) (holdfast.DrainReport, error) {
	var rep holdfast.DrainReport
	err := lines(ctx, c, http.MethodPost, nodePath(node, "/drain"), q, func(ev api.DrainEvent) (last bool, err error) {
		if ev.Step != nil {
			progress(*ev.Step)
		}
		if ev.Report != nil {
			rep = *ev.Report
		}
		return ev.Report != nil, orNil(ev.Error)
	})
	return rep, err
}

// Replace gives sessions new containers, a few at a time, and calls progress for each line
// of the answer before the report. Failed replacements are in the report. When ctx is done
// no more are begun, and running ones continue; the replacement of a group goes on.
func (c *Client) Replace(ctx context.Context, q api.ReplaceRequest, progress func(api.ReplaceEvent)) (holdfast.ReplaceReport, error) {
	var rep holdfast.ReplaceReport
	err := lines(ctx, c, http.MethodPost, "/v1/replace", q, func(ev api.ReplaceEvent) (last bool, err error) {
		if ev.Report != nil {
			rep = *ev.Report
		} else if ev.Error == nil {
			progress(ev)
		}
		return ev.Report != nil, orNil(ev.Error)
	})
	return rep, err
}

// orNil returns nil for a nil *api.Error: as an error it would not be nil.
func orNil(e *api.Error) error {
	if e == nil {
		return nil
	}
	return e
}

// lines sends a request and calls each for every line of the answer, until each reports
// the last line or returns an error.
func lines[T any](ctx context.Context, c *Client, method, path string, body any, each func(T) (last bool, err error)) error {
	resp, err := c.open(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	for d := json.NewDecoder(resp.Body); ; {
		var ev T
		if err := d.Decode(&ev); err != nil {
			return c.lost(ctx, err)
		}
		if last, err := each(ev); last || err != nil {
			return err
		}
	}
}
