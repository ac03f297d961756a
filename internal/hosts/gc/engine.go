package gc

import (
	"context"
	"iter"
	"time"

	"holdfast/internal/platform/engine"
)

// Engine is the part of a container engine that a Collector uses. Removals never
// force. They return engine.ErrRefused for an object in use and
// holdfast.ErrNotFound for one that no longer exists.
type Engine interface {
	Info(ctx context.Context) (engine.Info, error)
	Images(ctx context.Context) ([]engine.Image, error)
	InspectImage(ctx context.Context, ref string) (engine.Image, []string, error)
	Holders(ctx context.Context) ([]engine.Holder, error)
	Inspect(ctx context.Context, id string) (engine.Container, error)
	Networks(ctx context.Context, labels map[string]string) ([]engine.Network, error)
	Volumes(ctx context.Context) ([]engine.Volume, error)
	Activity(ctx context.Context, since, until time.Time) iter.Seq[engine.Activity]

	// SnapshotRoot returns the directory of the snapshotter of an engine with the
	// containerd image store, "" if it is not known or not on this host.
	SnapshotRoot(ctx context.Context) (string, error)
	// SnapshotDirs returns the directories with the files of a layer and of all layers
	// below it, highest first; none if the layer is not there. Only one goroutine on the
	// host may call it at a time.
	SnapshotDirs(ctx context.Context, chain string) ([]string, error)
	// WrittenDirs returns the directory with the files that a container wrote; none if
	// the container is not there.
	WrittenDirs(ctx context.Context, id string) ([]string, error)

	RemoveImage(ctx context.Context, ref string) error
	RemoveStopped(ctx context.Context, id string) error
	RemoveUnusedNetwork(ctx context.Context, id string) error
	RemoveVolume(ctx context.Context, name string) error
	PruneBuildCache(ctx context.Context, unused time.Duration, keep int64) (int64, error)
}

// Spinups reports all spin-ups in progress on this host, including those that
// Holdfast did not start. A spin-up lasts from the first byte of a pull until the
// container runs. Methods may be called from any goroutine.
type Spinups interface {
	// UnderWay returns the number of spin-ups in progress. If n is positive,
	// since is when the current busy period began; if n is 0, since is when the
	// idle period began.
	UnderWay() (n int, since time.Time)
	// Changed returns a channel that is closed when the next spin-up begins or
	// ends.
	Changed() <-chan struct{}
}
