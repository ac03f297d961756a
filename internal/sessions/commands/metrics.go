package commands

import (
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/platform/metric"
)

// Register registers the keeper's figures. They begin at 0 with each keeper.
func (c *Client) Register(r metric.Registry) {
	metric.GaugeFunc(r, "holdfast_commands_running", "Detached commands that run on this node.", func() int { return c.totals().Running })
	counter := func(name, help string, value func() int64) {
		r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(value()) }))
	}
	counter("holdfast_commands_started_total", "Detached commands that were started on this node.", func() int64 { return c.totals().Started })
	counter("holdfast_commands_lost_bytes_total", "Bytes of output of detached commands that are no longer kept.", func() int64 { return c.totals().Lost })
}

// totals are the keeper's figures of a moment ago.
func (c *Client) totals() totals {
	if n := c.figures.Load(); n != nil {
		return *n
	}
	return totals{}
}
