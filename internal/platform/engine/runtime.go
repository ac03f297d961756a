package engine

import "context"

// RuntimeTester is an optional interface of an Engine that can test its runtimes. An
// Engine without it has the default runtime only.
type RuntimeTester interface {
	// TestRuntime runs a container of a few hundred bytes with the runtime, and
	// removes the container and its image. Any goroutine may call it. The error says
	// what is missing and has a hint. It wraps holdfast.ErrNotFound if the engine
	// does not know the runtime.
	TestRuntime(ctx context.Context, runtime string) error
}
