package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/hosts/doctor/baseline"
	"holdfast/internal/hosts/doctor/ranking"
	"holdfast/internal/hosts/doctor/watch"
)

// DoctorStatus returns the doctor's diagnosis of a node's host. A node of "" is the
// agent's own. holdfast.ErrNotFound: the node is not up, or its doctor is switched off.
func (c *Client) DoctorStatus(ctx context.Context, node holdfast.NodeID) (api.DoctorStatus, error) {
	path := "/v1/doctor"
	if node != "" {
		path = nodePath(node, "/doctor")
	}
	return get[api.DoctorStatus](ctx, c, path)
}

// DoctorHistory returns the doctor's findings since the given time, the newest first, at
// most limit events (0: all that are kept). With samples it also has the host's facts over
// time.
func (c *Client) DoctorHistory(ctx context.Context, since time.Time, limit int, samples bool) (watch.History, error) {
	q := url.Values{"limit": {strconv.Itoa(limit)}, "samples": {strconv.FormatBool(samples)}}
	if !since.IsZero() {
		q.Set("since", since.Format(time.RFC3339Nano))
	}
	return get[watch.History](ctx, c, "/v1/doctor/history?"+q.Encode())
}

// DoctorEvents calls each for every change of a finding, until ctx is done or the agent
// ends the stream.
func (c *Client) DoctorEvents(ctx context.Context, each func(watch.Event)) error {
	return lines(ctx, c, http.MethodGet, "/v1/doctor/events", nil, func(e watch.Event) (last bool, err error) {
		each(e)
		return false, nil
	})
}

// DoctorFleet returns the facts that separate the fleet's slow nodes from its fast
// ones.
func (c *Client) DoctorFleet(ctx context.Context, by ranking.By) (ranking.Ranking, error) {
	return get[ranking.Ranking](ctx, c, "/v1/doctor/fleet?by="+url.QueryEscape(string(by)))
}

// Baselines lists the fleet's baselines.
func (c *Client) Baselines(ctx context.Context) ([]baseline.Baseline, error) {
	a, err := get[api.Baselines](ctx, c, "/v1/doctor/baselines")
	return a.Baselines, err
}

// SaveBaseline keeps a baseline for the whole fleet.
func (c *Client) SaveBaseline(ctx context.Context, b baseline.Baseline) error {
	return c.ask(ctx, http.MethodPost, "/v1/doctor/baselines", b, nil)
}

// RemoveBaseline removes a baseline. holdfast.ErrNotFound.
func (c *Client) RemoveBaseline(ctx context.Context, name string) error {
	return c.ask(ctx, http.MethodPost, "/v1/doctor/baselines/remove", api.BaselineName{Name: name}, nil)
}

// DoctorCures returns the scheduled cures of the agent's host, and at most limit of those
// that were carried out (0: all that are kept).
func (c *Client) DoctorCures(ctx context.Context, limit int) (api.DoctorCures, error) {
	return get[api.DoctorCures](ctx, c, "/v1/doctor/cures?limit="+strconv.Itoa(limit))
}

// AllowCure lets a scheduled cure run again. holdfast.ErrNotFound.
func (c *Client) AllowCure(ctx context.Context, name string) error {
	return c.ask(ctx, http.MethodPost, "/v1/doctor/cures/allow", api.CureName{Cure: name}, nil)
}
