package engine

import "context"

// RuntimeTester is an engine that can tell whether one of its runtimes runs
// containers: an Engine may implement it. One that does not has the default
// runtime only.
type RuntimeTester interface {
	// TestRuntime runs a container of a few hundred bytes with the runtime
	// and removes it again, its image too. Any goroutine may call it. The
	// error says what is missing, with a hint; it wraps
	// holdfast.ErrNotFound where the engine does not know the runtime.
	TestRuntime(ctx context.Context, runtime string) error
}
