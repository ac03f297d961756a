package engine

import "context"

// Tester is an optional interface of an Engine that can test whether it runs containers.
type Tester interface {
	// Try runs a container of a few hundred bytes, and removes the container and its
	// image. Any goroutine may call it. The error says what is missing and has a hint. It
	// wraps ErrNoStart if the engine cannot start the container, and holdfast.ErrNotFound
	// if the engine does not know the runtime.
	Try(ctx context.Context, t Trial) error
}
