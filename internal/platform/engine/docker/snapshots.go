package docker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs"
)

// viewName names the snapshot that SnapshotDirs makes, and its lease. containerd frees a
// snapshot that a killed process has left after viewLimit.
const (
	viewName  = "holdfast-gc"
	viewLimit = time.Minute
)

// SnapshotRoot returns the directory of the snapshotter in which an engine with the containerd
// image store keeps the files of layers. It returns "" for another engine, and for one whose
// containerd is not on this host.
func (e *Engine) SnapshotRoot(ctx context.Context) (string, error) {
	s, err := e.openStore(ctx)
	if s == nil || err != nil {
		return "", err
	}
	defer s.Close()
	res, err := s.IntrospectionService().Plugins(ctx, fmt.Sprintf("type==%s,id==%s", plugins.SnapshotPlugin, s.snapshotter))
	if err != nil {
		return "", fmt.Errorf("find the layers of the engine's containerd: %w", err)
	}
	if len(res.Plugins) == 0 {
		return "", nil
	}
	return res.Plugins[0].Exports[plugins.SnapshotterRootDir], nil
}

// SnapshotDirs returns the directories with the files of a layer, named by its chain id, and
// of all layers below it, highest first. It returns none if the layer is not there. For an
// instant it makes a snapshot on top, because containerd tells the directories only as
// mounts of a snapshot that is not committed.
func (e *Engine) SnapshotDirs(ctx context.Context, chain string) (dirs []string, err error) {
	s, err := e.openStore(ctx)
	if s == nil || err != nil {
		return nil, err
	}
	defer s.Close()
	if err := s.dropView(ctx); err != nil { // of a process that was killed
		return nil, err
	}
	lease, err := s.LeasesService().Create(ctx, leases.WithID(viewName), leases.WithExpiration(viewLimit))
	if err != nil {
		return nil, fmt.Errorf("find the directories of a layer: %w", err)
	}
	defer func() { err = errors.Join(err, s.dropView(ctx)) }()
	mounts, err := s.SnapshotService(s.snapshotter).View(leases.WithLease(ctx, lease.ID), viewName, chain)
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find the directories of a layer: %w", err)
	}
	return directories(mounts, "lowerdir="), nil
}

// dropView removes the snapshot of SnapshotDirs and its lease, also if ctx is done.
func (s *store) dropView(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeLimit)
	defer cancel()
	for _, drop := range []func() error{
		func() error { return s.SnapshotService(s.snapshotter).Remove(ctx, viewName) },
		func() error { return s.LeasesService().Delete(ctx, leases.Lease{ID: viewName}) },
	} {
		if err := drop(); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove the snapshot %s from the engine's containerd: %w", viewName, err)
		}
	}
	return nil
}

// WrittenDirs returns the directory with the files that a container wrote. It returns none if
// the container is not there.
func (e *Engine) WrittenDirs(ctx context.Context, id string) ([]string, error) {
	s, err := e.openStore(ctx)
	if s == nil || err != nil {
		return nil, err
	}
	defer s.Close()
	mounts, err := s.SnapshotService(s.snapshotter).Mounts(ctx, id)
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find the files of a container: %w", err)
	}
	return directories(mounts, "upperdir="), nil
}

// directories returns the paths in the mounts of a snapshot: the source of a bind mount, or
// those of an overlay's option (containerd, plugins/snapshots/overlay mounts).
func directories(mounts []mount.Mount, option string) []string {
	for _, m := range mounts {
		if m.Type == "bind" {
			return []string{m.Source}
		}
		for _, o := range m.Options {
			if paths, ok := strings.CutPrefix(o, option); ok {
				return strings.Split(paths, ":")
			}
		}
	}
	return nil
}
