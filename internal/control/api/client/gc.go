package client

import (
	"context"
	"net/http"
	"strconv"

	"holdfast/internal/control/api"
	"holdfast/internal/hosts/gc"
)

// GCPlan returns what the agent's garbage collection would delete now.
func (c *Client) GCPlan(ctx context.Context) (gc.Proposal, error) {
	return get[gc.Proposal](ctx, c, "/v1/gc/plan")
}

// GCObjects returns the objects of the agent's engine, the largest first, and what keeps each.
func (c *Client) GCObjects(ctx context.Context) (gc.Inventory, error) {
	return get[gc.Inventory](ctx, c, "/v1/gc/objects")
}

// GCRun makes the agent collect, and calls progress after each deletion. An error may come
// with a cycle of the deletions until then. When ctx is done the agent deletes no more.
// holdfast.ErrBusy.
func (c *Client) GCRun(ctx context.Context, progress func(o gc.Outcome, deleted bool)) (gc.Cycle, error) {
	var cy gc.Cycle
	err := lines(ctx, c, http.MethodPost, "/v1/gc/run", api.Empty{}, func(ev api.GCEvent) (last bool, err error) {
		if ev.Deleted != nil {
			progress(*ev.Deleted, true)
		}
		if ev.Skipped != nil {
			progress(*ev.Skipped, false)
		}
		if ev.Cycle != nil {
			cy = *ev.Cycle
		}
		return ev.Cycle != nil, orNil(ev.Error)
	})
	return cy, err
}

// GCStatus returns the state of the agent's garbage collection.
func (c *Client) GCStatus(ctx context.Context) (gc.Status, error) {
	return get[gc.Status](ctx, c, "/v1/gc/status")
}

// GCHistory lists the agent's last cycles, the newest first; limit 0 is all.
func (c *Client) GCHistory(ctx context.Context, limit int) ([]gc.Cycle, error) {
	a, err := get[api.GCCycles](ctx, c, "/v1/gc/history?limit="+strconv.Itoa(limit))
	return a.Cycles, err
}
