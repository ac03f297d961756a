package lab_test

import (
	"testing"

	"holdfast/test/lab"
)

// BenchmarkEngine measures the start of an engine until it answers, and the stop until all
// its processes and files are gone.
func BenchmarkEngine(b *testing.B) {
	for b.Loop() {
		e, err := lab.StartEngine(b.Context(), lab.Options{})
		if err != nil {
			b.Fatal(err)
		}
		started := b.Elapsed()
		if err := e.Stop(); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64((b.Elapsed() - started).Milliseconds()), "last-stop-ms")
	}
}
