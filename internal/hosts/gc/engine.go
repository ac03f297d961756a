package gc

import (
	"context"
	"iter"
	"time"

	"holdfast/internal/platform/engine"
)

// Engine is what a Collector needs of a container engine. The removals never
// force: engine.ErrRefused for what is in use, holdfast.ErrNotFound for what is
// gone.
type Engine interface {
	Info(ctx context.Context) (engine.Info, error)
	Images(ctx context.Context) ([]engine.Image, error)
	InspectImage(ctx context.Context, ref string) (engine.Image, []string, error)
	Holders(ctx context.Context) ([]engine.Holder, error)
	Inspect(ctx context.Context, id string) (engine.Container, error)
	Networks(ctx context.Context) ([]engine.Network, error)
	Volumes(ctx context.Context) ([]engine.Volume, error)
	Activity(ctx context.Context, since, until time.Time) iter.Seq[engine.Activity]

	RemoveImage(ctx context.Context, ref string) error
	RemoveStopped(ctx context.Context, id string) error
	RemoveUnusedNetwork(ctx context.Context, id string) error
	RemoveVolume(ctx context.Context, name string) error
	PruneBuildCache(ctx context.Context, unused time.Duration, keep int64) (int64, error)
}

// Spinups says what spins up on this host right now, whoever began it: from the
// first byte of a pull until the container runs. Methods may be called from any
// goroutine.
type Spinups interface {
	// UnderWay counts them, and says since when there have been some without
	// a pause; of 0, since when there have been none.
	UnderWay() (n int, since time.Time)
	// Changed is closed when one begins or ends next.
	Changed() <-chan struct{}
}
