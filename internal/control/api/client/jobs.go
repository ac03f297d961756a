package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/platform/frame"
)

// PlaceJob returns the node of each run of a job. Errors: holdfast.ErrBusy,
// holdfast.ErrNotFound.
func (c *Client) PlaceJob(ctx context.Context, q api.PlaceJobRequest) ([]holdfast.NodeID, error) {
	p, err := post[api.JobPlaces](ctx, c, "/v1/jobs/place", q)
	if err == nil && len(p.Nodes) != q.Runs {
		err = fmt.Errorf("the agent placed %d of %d runs", len(p.Nodes), q.Runs)
	}
	return p.Nodes, err
}

// EstimatePull returns how long a pull of images would take on a node.
func (c *Client) EstimatePull(ctx context.Context, node holdfast.NodeID, q api.JobImages) (api.PullEstimate, error) {
	return post[api.PullEstimate](ctx, c, nodePath(node, "/pull-estimate"), q)
}

const (
	// stopWait bounds the wait for a node that removes a stopped job, which takes two
	// minutes at most.
	stopWait = 150 * time.Second

	maxJobEvent = 1 << 20 // bytes of one line
)

// RunJob runs a part of a job on a node. It returns when everything is removed there, or
// the node is lost: then the error is ErrUnreachable, or an *api.Error with
// api.CodeNodeDown. If ctx is done, it stops the job and waits until the node has removed
// everything. The stream's functions are called by this goroutine.
func (c *Client) RunJob(ctx context.Context, node holdfast.NodeID, q api.JobRequest, s api.JobStream) error {
	conn, err := c.upgrade(ctx, nodePath(node, "/jobs"), q)
	if err != nil {
		return err
	}
	defer conn.Close()
	f := frame.NewConn(bufio.NewReader(conn), conn)
	unstop := context.AfterFunc(ctx, func() {
		_ = f.Write(frame.Stdin, nil) // fails only if the connection has ended, which its reader sees
		time.AfterFunc(stopWait, func() { conn.Close() })
	})
	defer unstop()
	var line []byte
	for {
		kind, p, err := f.Read()
		if err != nil {
			return c.lost(ctx, err)
		}
		switch kind {
		case frame.Exit:
			if _, err := exitOf(p); err != nil {
				return err
			}
			return nil
		case frame.Event:
			if line = append(line, p...); len(line) > maxJobEvent {
				return errors.New("the node sent an event that is too long")
			}
			if !bytes.HasSuffix(line, []byte("\n")) {
				continue
			}
			var ev api.JobEvent
			if err := json.Unmarshal(line, &ev); err != nil {
				return fmt.Errorf("reading an event of the job: %w", err)
			}
			line = line[:0]
			s.Event(ev)
		case frame.Stdout, frame.Stderr:
			if err := deliver(q, s, kind, p); err != nil {
				return err
			}
		}
	}
}

// deliver writes a piece of the output of a run.
func deliver(q api.JobRequest, s api.JobStream, kind frame.Kind, p []byte) error {
	run, piece, ok := frame.Untag(p)
	if !ok || int(run) >= q.Job.Parallelism {
		return errors.New("the node sent output of no run")
	}
	w, stderr := s.Output(int(run))
	if kind == frame.Stderr {
		w = stderr
	}
	if _, err := w.Write(piece); err != nil {
		return fmt.Errorf("writing the job's output: %w", err)
	}
	return nil
}
