package relay

import (
	"runtime"
	"testing"
)

// BenchmarkIdlePair measures the heap and the stacks that an idle WebSocket occupies in the
// process, without the kernel's sockets and the state of TLS, whose handshake was before.
// Use it with -benchtime=1000x.
func BenchmarkIdlePair(b *testing.B) {
	for kind := range kinds {
		b.Run(kind, func(b *testing.B) {
			r, _ := startRelay(b)
			specs := make([]Spec, b.N)
			for i := range specs {
				outer, inner := kinds[kind](b)
				up, server := tcpPair(b)
				specs[i] = Spec{Client: inner, Upstream: up, WebSocket: true}
				_, _ = outer, server
			}
			before := inUse()
			for _, s := range specs {
				if err := r.Add(s); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(inUse()-before)/float64(b.N), "B/pair")
			runtime.KeepAlive(specs) // otherwise the memory of their connections would be freed
		})
	}
}

// inUse returns the bytes of the heap after a collection, and of the stacks.
func inUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
