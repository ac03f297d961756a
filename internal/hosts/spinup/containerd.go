package spinup

import (
	"time"

	"holdfast/internal/platform/engine"
)

// The containerd image store polls its downloads every 100 ms and reports a layer
// only once something was written. It writes in pieces of 1 MiB (moby,
// daemon/containerd/progress.go; containerd, core/content/helpers.go and
// plugins/content). Measured: the first count of a layer on a link of 8 MiB/s
// comes 0.4 s after its first byte. Therefore the rate after the first count is
// used to infer what came before it. The engine's adapter has exact times if it reaches the
// engine's containerd; see correct.

// poll is the polling interval of the containerd image store.
const poll = 100 * time.Millisecond

// counts are the first and the last count of a layer.
type counts struct {
	first, last     int64
	firstAt, lastAt time.Duration
}

// note records a count.
func (c *counts) note(n int64, at time.Duration) {
	if n <= 0 {
		return
	}
	if c.first == 0 {
		c.first, c.firstAt = n, at
	}
	c.last, c.lastAt = n, at
}

// rate returns the bytes per second after the first count, or 0 if unknown.
func (c counts) rate() float64 {
	if c.last <= c.first || c.lastAt <= c.firstAt {
		return 0
	}
	return float64(c.last-c.first) / (c.lastAt - c.firstAt).Seconds()
}

// begin returns when the layer's first byte came, inferred from its rate: not
// before the layer was announced, and not after its first count.
func (c counts) begin(announced time.Duration) time.Duration {
	r := c.rate()
	if r <= 0 {
		return c.firstAt
	}
	before := time.Duration(min(float64(c.first)/r, (c.firstAt-announced).Seconds()) * float64(time.Second))
	return c.firstAt - max(before, 0)
}

// Bounds by which the first count of a layer exceeds what its later rate
// explains, if another pull has started the download.
const (
	joinedFactor = 4
	joinedSlack  = 2 << 20
	joinedWithin = 150 * time.Millisecond // a poll, and some load
)

// joined reports whether the first count comes from another pull.
func (c counts) joined(announced time.Duration) bool {
	if c.first == 0 || c.firstAt-announced > joinedWithin {
		return false
	}
	own := c.rate() * (c.firstAt - announced).Seconds()
	return c.rate() > 0 && float64(c.first) > joinedFactor*own+joinedSlack
}

// correct replaces the times of the lines of a layer that is complete by those of the
// store. The line "Pull complete" never comes before the end of an extraction.
func (l *layer) correct(t engine.LayerTimes, begun time.Time) {
	if l.state != Complete {
		return
	}
	since := func(at time.Time) time.Duration { return min(max(at.Sub(begun), 0), l.finished) }
	l.exact, l.extracting = true, false
	l.given, l.had = bounded(t.Size), bounded(t.From)
	l.downloaded = since(t.Stored)
	if l.present {
		l.downloaded = l.announced
	} else {
		received := min(since(t.Received), l.downloaded)
		from := received
		switch {
		case t.Requested.IsZero() && len(l.download) > 0:
			from = min(l.download[0].from, received)
		case t.Requested.IsZero():
		case t.Requested.Before(begun):
			l.joined = true
			from = min(l.announced, received)
		default:
			from = min(since(t.Requested), received)
		}
		l.download = []interval{{from, received}}
	}
	end := max(since(t.Extracted), l.downloaded)
	if !t.Empty.IsZero() {
		l.extracting = true
		l.extract = interval{min(max(since(t.Empty), l.downloaded), end), end}
	}
	l.finished = end
}
