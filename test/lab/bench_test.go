package lab_test

import (
	"testing"

	"holdfast/test/lab"
)

// BenchmarkEngine is the life of an engine without containers: started until it
// answers, and stopped until nothing of it is left.
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
