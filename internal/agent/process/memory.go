package process

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"holdfast/internal/platform/linux/standby"
	"holdfast/internal/platform/tasks"
)

const (
	// restCheck is the interval at which ReturnMemory looks.
	restCheck = time.Minute
	// worthReturning is the amount of unused heap, in bytes, for which it collects garbage.
	worthReturning = 4 << 20
)

// ReturnMemory returns unused memory of this process to the kernel, until ctx is done. It does
// so when the process has been at rest since the last look. Go's runtime keeps what the heap
// may use until its next collection, about twice the live heap. An agent whose sessions sleep
// would keep the memory of their last requests.
//
// It also unmaps the program at each look. An agent with 50 sessions maps 23 MB of it again
// within a minute, by some hundred minor faults that take about a millisecond. The other
// 12 MB are code of its start and of rare requests.
func ReturnMemory(ctx context.Context) error {
	var r rest
	return tasks.Every(ctx, restCheck, func() {
		if r.over(readHeap()) {
			debug.FreeOSMemory()
		}
		// An error means that the pages stay mapped, as those of any program do.
		_ = standby.UnmapProgram()
	})
}

// heap has figures of the Go runtime, in bytes.
type heap struct {
	allocated uint64 // since the start
	live      uint64 // at the last collection
	resident  uint64
}

// readHeap reads them (package runtime/metrics).
func readHeap() heap {
	s := []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(s)
	v := func(i int) uint64 { return s[i].Value.Uint64() }
	return heap{allocated: v(0), live: v(1), resident: v(2) + v(3) + v(4)}
}

// rest tells when a process is at rest.
type rest struct {
	last     heap
	returned uint64 // what was allocated when memory was returned last
}

// over reports whether memory is to be returned: little was allocated since the last look,
// something since memory was returned last, and more than a quarter of the live heap is unused.
func (r *rest) over(now heap) bool {
	before := r.last
	r.last = now
	atRest := before.allocated > 0 && now.allocated-before.allocated < now.live/2
	if !atRest || now.allocated-r.returned < worthReturning || now.resident < now.live+now.live/4+worthReturning {
		return false
	}
	r.returned = now.allocated
	return true
}
