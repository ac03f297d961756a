package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/underway"
)

// Spinups lists the spin-ups that match the filter, the newest first, without the
// layers of their pulls. The agent's rules decide which are slow, not the filter's. A
// Limit of 0 is api.DefaultSpinups.
func (c *Client) Spinups(ctx context.Context, f spinup.Filter) ([]api.JudgedSpinup, error) {
	q := filterQuery(f)
	if f.Limit > 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	a, err := get[api.SpinupList](ctx, c, "/v1/spinups?"+q.Encode())
	return a.Spinups, err
}

// Spinup returns the spin-up with the id, or the only one whose id begins with it.
// holdfast.ErrNotFound.
func (c *Client) Spinup(ctx context.Context, id string) (api.JudgedSpinup, error) {
	return get[api.JudgedSpinup](ctx, c, "/v1/spinups/"+url.PathEscape(id))
}

// SpinupReport returns how often phases were slow. It ignores the Limit of the
// question's filter, and uses the agent's rules.
func (c *Client) SpinupReport(ctx context.Context, q spinup.Question) (spinup.Report, error) {
	return get[spinup.Report](ctx, c, "/v1/spinup-stats?"+statsQuery(q))
}

// FleetSpinupReport is SpinupReport for all nodes of the agent's fleet. Each node uses its
// own rules.
func (c *Client) FleetSpinupReport(ctx context.Context, q spinup.Question) (spinup.FleetReport, error) {
	return get[spinup.FleetReport](ctx, c, "/v1/spinup-stats/fleet?"+statsQuery(q))
}

// SpinupSketch is SpinupReport of a node's host in the form in which answers of several hosts
// are merged.
func (c *Client) SpinupSketch(ctx context.Context, node holdfast.NodeID, q spinup.Question) (spinup.Sketch, error) {
	return get[spinup.Sketch](ctx, c, nodePath(node, "/spinup-sketch")+"?"+statsQuery(q))
}

// AddSpinup makes the agent keep a record. It returns when the record is on disk.
// holdfast.ErrBusy while the agent's records are not open.
func (c *Client) AddSpinup(ctx context.Context, r spinup.Record) error {
	return c.ask(ctx, http.MethodPost, "/v1/spinups", r.Bounded(), nil)
}

// SpinupsUnderWay lists the spin-ups that have not ended, the oldest first.
func (c *Client) SpinupsUnderWay(ctx context.Context) ([]underway.Entry, error) {
	a, err := get[api.SpinupsUnderWay](ctx, c, "/v1/spinups-under-way")
	return a.UnderWay, err
}

// BeginSpinup announces a spin-up. kind is spinup.ForPull, spinup.ForRun, or "" for
// another program. It counts until EndSpinup, or for life (0: api.DefaultUnderWay).
// holdfast.ErrBusy if there are too many.
func (c *Client) BeginSpinup(ctx context.Context, kind spinup.Kind, name string, life time.Duration) (underway.Entry, error) {
	return post[underway.Entry](ctx, c, "/v1/spinups-under-way", api.BeginSpinupRequest{Name: name, Kind: kind, For: holdfast.Millis(life)})
}

// EndSpinup ends a spin-up that BeginSpinup announced. holdfast.ErrNotFound.
func (c *Client) EndSpinup(ctx context.Context, id string) error {
	return c.ask(ctx, http.MethodPost, "/v1/spinups-under-way/"+url.PathEscape(id)+"/end", api.Empty{}, nil)
}

func statsQuery(q spinup.Question) string {
	v := filterQuery(q.Filter)
	set(v, "by", string(q.By))
	set(v, "against", q.Against)
	setTime(v, "at", q.At)
	return v.Encode()
}

func filterQuery(f spinup.Filter) url.Values {
	q := url.Values{}
	setTime(q, "since", f.Since)
	setTime(q, "until", f.Until)
	set(q, "kind", string(f.Kind))
	set(q, "image", f.Image)
	set(q, "job", f.Job)
	set(q, "outcome", string(f.Outcome))
	set(q, "experiment", f.Experiment)
	if f.Slow != nil {
		q.Set("slow", "true")
	}
	return q
}

func set(q url.Values, name, value string) {
	if value != "" {
		q.Set(name, value)
	}
}

func setTime(q url.Values, name string, t time.Time) {
	if !t.IsZero() {
		q.Set(name, t.UTC().Format(time.RFC3339Nano))
	}
}
