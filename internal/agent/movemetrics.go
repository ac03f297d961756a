package agent

import (
	"io"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// moveMetrics are the figures of images of sessions' memory.
type moveMetrics struct {
	seconds *prometheus.HistogramVec // by part
	bytes   prometheus.Counter
}

// Parts of a container's saving.
const (
	partCheckpoint = "checkpoint"
	partStream     = "stream"
)

// newMoveMetrics makes the figures and registers them.
func newMoveMetrics(reg prometheus.Registerer) *moveMetrics {
	m := &moveMetrics{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "holdfast_session_image_seconds",
			Help:    "Time of a part of a container's saving that was done: checkpoint, until its image is written; stream, until the successor has it.",
			Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"part"}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_session_image_bytes_total",
			Help: "Bytes of the images of sessions' memory that were sent to successors.",
		}),
	}
	for _, part := range []string{partCheckpoint, partStream} {
		m.seconds.WithLabelValues(part)
	}
	reg.MustRegister(m.seconds, m.bytes)
	return m
}

// took notes a part that has begun then and is done.
func (m *moveMetrics) took(part string, begun time.Time) {
	m.seconds.WithLabelValues(part).Observe(time.Since(begun).Seconds())
}

// counting counts what is written to w.
func (m *moveMetrics) counting(w io.Writer) io.Writer { return counting{w, m.bytes} }

type counting struct {
	io.Writer
	bytes prometheus.Counter
}

func (c counting) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.bytes.Add(float64(n))
	return n, err
}
