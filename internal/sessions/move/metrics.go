package move

import (
	"io"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/platform/metric"
)

// metrics are the figures of images that are saved and sent.
type metrics struct {
	seconds *prometheus.HistogramVec // by part
	bytes   prometheus.Counter
}

// Parts of saving a container.
const (
	partCheckpoint = "checkpoint"
	partStream     = "stream"
	partCopy       = "copy"
)

func newMetrics(reg prometheus.Registerer) *metrics {
	r := metric.Registry{Registerer: reg}
	m := &metrics{
		seconds: r.HistogramVec("holdfast_session_image_seconds",
			"Duration of one part of saving a container, in seconds: checkpoint, until its image is written; stream, until the successor has received it; copy, the checkpoint of a session that goes on.",
			[]float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}, "part"),
		bytes: r.Counter("holdfast_session_image_bytes_total", "Bytes of session images that were sent to successors."),
	}
	metric.Start(m.seconds, partCheckpoint, partStream, partCopy)
	return m
}

// observe records a part that is complete.
func (m *metrics) observe(part string, begun time.Time) {
	m.seconds.WithLabelValues(part).Observe(time.Since(begun).Seconds())
}

// count returns a writer to w that counts the bytes sent.
func (m *metrics) count(w io.Writer) io.Writer { return countingWriter{w, m.bytes} }

type countingWriter struct {
	io.Writer
	bytes prometheus.Counter
}

func (c countingWriter) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.bytes.Add(float64(n))
	return n, err
}
