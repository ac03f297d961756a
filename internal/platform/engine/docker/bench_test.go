package docker_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"holdfast/internal/platform/engine"
	"holdfast/test/lab/labtest"
)

// BenchmarkCreateStart measures creating and starting a container on the default
// bridge, through the adapter. It does not count its removal.
func BenchmarkCreateStart(b *testing.B) {
	e, _ := open(b)
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		begin := time.Now()
		id, err := e.Create(b.Context(), engine.Spec{Name: fmt.Sprintf("bench-%d", i), Image: labtest.Busybox})
		if err != nil {
			b.Fatal(err)
		}
		if err := e.Start(b.Context(), id); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(begin))
		b.StopTimer()
		if err := e.Remove(b.Context(), id); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}

// BenchmarkPing measures the call that checks whether the engine answers, beside the one that
// describes the engine.
func BenchmarkPing(b *testing.B) {
	e, _ := open(b)
	info := func(ctx context.Context) error { _, err := e.Info(ctx); return err }
	for name, call := range map[string]func(context.Context) error{"ping": e.Ping, "info": info} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := call(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
