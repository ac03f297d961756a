package containerd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"

	"holdfast/internal/platform/linux/pidfd"
)

// youngest is the least age of a stray directory or snapshot: both are made a moment
// before their container.
const youngest = time.Minute

// strays has the resources of containers, some of which may belong to none.
type strays struct {
	owners    map[netip.Addr]string
	dirs      map[string]string // by the container's id
	snapshots []string
	shims     map[string]*pidfd.Process // likewise
}

func (s strays) close() {
	for _, p := range s.shims {
		p.Close()
	}
}

// Reap frees the addresses, files, snapshots and shims of containers that are gone,
// for example after a removal with another tool or after a crash. Run calls it
// periodically.
func (e *Engine) Reap(ctx context.Context) error {
	ctx = e.in(ctx)
	found, err := e.strays(ctx)
	if err != nil {
		return e.fail(ctx, err, "look for what removed containers left")
	}
	// The list comes last: a container that is not in it has been removed.
	list, err := e.api.ContainerService().List(ctx)
	if err != nil {
		found.close()
		return e.fail(ctx, err, "list containers")
	}
	alive, err := e.alive(ctx, found, list)
	if err != nil {
		found.close()
		return e.fail(ctx, err, "list containers of other namespaces")
	}
	if err := found.free(ctx, e, list, alive); err != nil {
		return e.fail(ctx, err, "remove what removed containers left")
	}
	return nil
}

// alive returns the ids of the containers in the list. If something in the directory seems to
// belong to none of them, it adds those of all other namespaces: agents with another
// engine.namespace have the same directory, and so has this one from before its configuration
// changed.
func (e *Engine) alive(ctx context.Context, found strays, list []containers.Container) (map[string]bool, error) {
	ids := map[string]bool{}
	for _, c := range list {
		ids[c.ID] = true
	}
	seeming := slices.AppendSeq(slices.Collect(maps.Values(found.owners)), maps.Keys(found.dirs))
	if !slices.ContainsFunc(seeming, func(id string) bool { return !ids[id] }) {
		return ids, nil
	}
	names, err := e.api.NamespaceService().List(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if name == e.cfg.Namespace {
			continue
		}
		list, err := e.api.ContainerService().List(namespaces.WithNamespace(ctx, name))
		if err != nil {
			return nil, err
		}
		for _, c := range list {
			ids[c.ID] = true
		}
	}
	return ids, nil
}

func (e *Engine) strays(ctx context.Context) (s strays, err error) {
	if s.owners, err = e.net.Owners(); err != nil {
		return s, err
	}
	if s.dirs, err = e.oldDirs(); err != nil {
		return s, err
	}
	err = e.api.SnapshotService(e.cfg.Snapshotter).Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if time.Since(info.Created) > youngest {
			s.snapshots = append(s.snapshots, info.Name)
		}
		return nil
	}, fmt.Sprintf("labels.%q", ownLabels+"container"))
	if err != nil {
		return s, err
	}
	s.shims, err = e.oldShims()
	return s, err
}

// oldDirs returns the containers' directories, by id.
func (e *Engine) oldDirs() (map[string]string, error) {
	base := filepath.Join(e.cfg.Dir, "containers")
	entries, err := os.ReadDir(base)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	dirs := map[string]string{}
	for _, entry := range entries {
		fi, err := entry.Info()
		if err == nil && time.Since(fi.ModTime()) > youngest && fullID().MatchString(entry.Name()) {
			dirs[entry.Name()] = filepath.Join(base, entry.Name())
		}
	}
	return dirs, nil
}

// free removes the resources that no container has: snapshots and shims of none in the list, and
// addresses and directories of none that is alive in any namespace.
func (s strays) free(ctx context.Context, e *Engine, list []containers.Container, alive map[string]bool) error {
	keys, shims := map[string]bool{}, map[string]bool{}
	for _, c := range list {
		keys[c.SnapshotKey] = true
		shims[cmp.Or(recordOf(c).Shim, c.ID)] = true
	}
	errs := []error{endShims(s.shims, shims)}
	for addr, owner := range s.owners {
		if !alive[owner] {
			errs = append(errs, e.net.Release(owner, addr))
		}
	}
	for id, dir := range s.dirs {
		if !alive[id] {
			errs = append(errs, os.RemoveAll(dir))
		}
	}
	for _, key := range s.snapshots {
		if keys[key] {
			continue
		}
		if err := e.api.SnapshotService(e.cfg.Snapshotter).Remove(ctx, key); err != nil && !isGone(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// freeStray removes the snapshot of a container that was never created, and reports
// whether it did.
func (e *Engine) freeStray(ctx context.Context, key string) bool {
	service := e.api.SnapshotService(e.cfg.Snapshotter)
	info, err := service.Stat(ctx, key)
	if err != nil || time.Since(info.Created) < youngest || info.Labels[ownLabels+"container"] == "" {
		return false
	}
	list, err := e.api.ContainerService().List(ctx, fmt.Sprintf("labels.%q==%q", labelName, key))
	return err == nil && len(list) == 0 && service.Remove(ctx, key) == nil
}
