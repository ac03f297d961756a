package drill

import (
	"context"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"
)

// throttle is a program with several threads and a limit of a twentieth of a CPU. Even on
// a busy host it would get more than that without the limit.
func throttle() Drill {
	return Drill{
		Name: "throttle", Short: "a program that needs more CPU than its limit", Rule: "throttling",
		Size: 2, MaxSize: 64, Unit: "threads", Containers: true,
		parts: []part{{name: "worker", limits: limits{cpus: 0.05}, work: func(ctx context.Context, t Task, ready func()) error {
			ready()
			return burn(ctx, t.Size)
		}}},
	}
}

// neighbour is a program that uses all CPUs, next to one that needs little.
func neighbour() Drill {
	return Drill{
		Name: "neighbour", Short: "a program that uses all CPUs, next to one that needs little", Rule: "noisy-neighbour",
		Size: 4, MaxSize: 64, Unit: "threads for each CPU", Containers: true,
		parts: []part{
			{name: "hog", limits: limits{weight: 8192}, work: func(ctx context.Context, t Task, ready func()) error {
				ready()
				return burn(ctx, t.Size*runtime.NumCPU())
			}},
			{name: "victim", work: func(ctx context.Context, _ Task, ready func()) error {
				ready()
				for ctx.Err() == nil { // half of a CPU, if it is available
					spin(10 * time.Millisecond)
					time.Sleep(10 * time.Millisecond)
				}
				return nil
			}},
		},
	}
}

// burn keeps n threads busy until ctx is done.
func burn(ctx context.Context, n int) error {
	runtime.GOMAXPROCS(n + 1)
	return threads(n, func(int) error {
		for ctx.Err() == nil {
			spin(time.Millisecond)
		}
		return nil
	})
}

// threads runs do n times at once, and returns the first error when all have ended.
func threads(n int, do func(i int) error) error {
	var g errgroup.Group
	for i := range n {
		g.Go(func() error { return do(i) })
	}
	return g.Wait()
}

// spin is busy for some wall time.
func spin(d time.Duration) {
	for begin := time.Now(); time.Since(begin) < d; {
	}
}
