package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/distribution/reference"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// Images lists the namespace's images. Several names of one target are one image. It
// leaves out images for other platforms and images without their content.
func (e *Engine) Images(ctx context.Context) ([]engine.Image, error) {
	ctx = e.in(ctx)
	all, err := e.api.ImageService().List(ctx)
	if err != nil {
		return nil, e.fail(ctx, err, "list images")
	}
	var list []engine.Image
	at := map[string]int{}
	for _, img := range all {
		id := img.Target.Digest.String()
		if i, known := at[id]; known {
			list[i].Refs = append(list[i].Refs, familiar(img.Name))
			continue
		}
		one, err := e.imageOf(ctx, img)
		if isGone(err) {
			continue
		}
		if err != nil {
			return nil, e.fail(ctx, err, "list images")
		}
		at[id] = len(list)
		list = append(list, one)
	}
	return list, nil
}

// familiar is a name in Docker's short form.
func familiar(name string) string {
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return name
	}
	return reference.FamiliarString(named)
}

// imageOf is an image with this name only.
func (e *Engine) imageOf(ctx context.Context, img images.Image) (engine.Image, error) {
	c, err := e.config(ctx, img)
	if err != nil {
		return engine.Image{}, err
	}
	size, err := e.sizeOf(ctx, img)
	if err != nil {
		return engine.Image{}, err
	}
	one := engine.Image{ID: img.Target.Digest.String(), Refs: []string{familiar(img.Name)}, Labels: c.Config.Labels, Size: size}
	if c.Created != nil {
		one.Created = *c.Created
	}
	return one, nil
}

// sizeOf is the size of an image in the content store and in snapshots, in bytes.
func (e *Engine) sizeOf(ctx context.Context, img images.Image) (int64, error) {
	return e.sizes.get(img.Target.Digest.String(), func() (int64, error) {
		return client.NewImage(e.api, img).Usage(ctx, client.WithSnapshotUsage())
	})
}

// InspectImage returns one image, by name or id, and the digests of its layers,
// lowest first. engine.ErrNoImage.
func (e *Engine) InspectImage(ctx context.Context, ref string) (engine.Image, []string, error) {
	ctx = e.in(ctx)
	one, diffs, err := e.inspectImage(ctx, ref)
	return one, diffs, e.fail(ctx, err, "find image %s", ref)
}

func (e *Engine) inspectImage(ctx context.Context, ref string) (one engine.Image, diffs []string, err error) {
	img, err := e.image(ctx, ref)
	if err != nil {
		return one, nil, err
	}
	c, err := e.config(ctx, img)
	if err == nil {
		one, err = e.imageOf(ctx, img)
	}
	if isGone(err) {
		return one, nil, fmt.Errorf("%s: %w", ref, engine.ErrNoImage)
	}
	if err != nil {
		return one, nil, err
	}
	names, err := e.namesOf(ctx, one.ID)
	if err != nil {
		return one, nil, err
	}
	one.Refs = names
	for _, d := range c.RootFS.DiffIDs {
		diffs = append(diffs, d.String())
	}
	return one, diffs, nil
}

// namesOf returns all names of an image.
func (e *Engine) namesOf(ctx context.Context, id string) ([]string, error) {
	list, err := e.api.ImageService().List(ctx, fmt.Sprintf("target.digest==%q", id))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, img := range list {
		names = append(names, familiar(img.Name))
	}
	return names, nil
}

// Holders lists all containers, in any state.
func (e *Engine) Holders(ctx context.Context) ([]engine.Holder, error) {
	ctx = e.in(ctx)
	raw, err := e.rawList(ctx, nil)
	if err != nil {
		return nil, e.fail(ctx, err, "list containers")
	}
	list, err := e.withStates(ctx, raw)
	if err != nil {
		return nil, e.fail(ctx, err, "list containers")
	}
	holders := make([]engine.Holder, 0, len(list))
	for i, c := range list {
		r := recordOf(raw[i])
		holders = append(holders, engine.Holder{
			ID: c.ID, Name: c.Name, Image: c.Image, ImageID: r.ImageID, State: c.State, Created: c.Created, Labels: c.Labels, Volumes: r.Volumes,
		})
	}
	return holders, nil
}

// RemoveImage removes one name of an image, and with the last name the image, unless
// a container uses it. An id is for an image with one name. engine.ErrRefused;
// holdfast.ErrNotFound if it is gone already. containerd frees content and snapshots
// later.
func (e *Engine) RemoveImage(ctx context.Context, ref string) error {
	ctx = e.in(ctx)
	img, err := e.image(ctx, ref)
	if errors.Is(err, engine.ErrNoImage) {
		err = fmt.Errorf("%w: %w", holdfast.ErrNotFound, err)
	}
	if err == nil {
		err = e.mayRemoveImage(ctx, img)
	}
	if err == nil {
		err = e.api.ImageService().Delete(ctx, img.Name)
		if isGone(err) {
			err = fmt.Errorf("%w: %w", holdfast.ErrNotFound, err)
		}
	}
	return e.fail(ctx, err, "remove image %s", ref)
}

// mayRemoveImage refuses the last name of an image that a container uses: containerd
// itself would keep only the container's snapshot.
func (e *Engine) mayRemoveImage(ctx context.Context, img images.Image) error {
	id := img.Target.Digest.String()
	names, err := e.namesOf(ctx, id)
	if err != nil || len(names) > 1 {
		return err
	}
	raw, err := e.rawList(ctx, nil)
	if err != nil {
		return err
	}
	for _, c := range raw {
		if r := recordOf(c); r.ImageID == id || r.ImageID == "" && c.Image == img.Name {
			return fmt.Errorf("%w: container %s has it", engine.ErrRefused, nameOf(c))
		}
	}
	return nil
}

// RemoveStopped deletes a stopped container with its anonymous volumes. It returns
// errors like RemoveImage.
func (e *Engine) RemoveStopped(ctx context.Context, id string) error {
	ctx = e.in(ctx)
	c, err := e.find(ctx, id)
	if err == nil {
		err = e.removeStopped(ctx, c)
	}
	return e.fail(ctx, err, "remove container %s", id)
}

func (e *Engine) removeStopped(ctx context.Context, c containers.Container) error {
	unlock, err := e.locks.lock(ctx, c.ID)
	if err != nil {
		return err
	}
	defer unlock()
	switch t, err := e.task(ctx, c.ID); {
	case err != nil && !isGone(err):
		return err
	case err == nil && t.Status != task.Status_STOPPED:
		return fmt.Errorf("%w: it is running", engine.ErrRefused)
	}
	if err := e.deleteTask(ctx, c.ID); err != nil {
		return err
	}
	return e.forget(ctx, c)
}

// Volumes lists the named volumes, which are directories.
func (e *Engine) Volumes(context.Context) ([]engine.Volume, error) {
	entries, err := os.ReadDir(filepath.Join(e.cfg.Dir, "volumes"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	var list []engine.Volume
	for _, entry := range entries {
		fi, err := entry.Info()
		if err != nil || !entry.IsDir() {
			continue // it was removed just now, or is not a volume
		}
		list = append(list, engine.Volume{Name: entry.Name(), Driver: "local", Created: fi.ModTime()})
	}
	return list, nil
}

// RemoveVolume deletes a volume that no container uses. It returns errors like
// RemoveImage.
func (e *Engine) RemoveVolume(ctx context.Context, name string) error {
	if !volumeName().MatchString(name) {
		return fmt.Errorf("remove volume %q: %w", name, holdfast.ErrNotFound)
	}
	dir := filepath.Join(e.cfg.Dir, "volumes", name)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove volume %s: %w", name, holdfast.ErrNotFound)
	}
	holders, err := e.Holders(ctx)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(holders, func(h engine.Holder) bool { return slices.Contains(h.Volumes, name) }); i >= 0 {
		return fmt.Errorf("remove volume %s: %w: container %s has it", name, engine.ErrRefused, holders[i].Name)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove volume %s: %w", name, err)
	}
	return nil
}

// PruneBuildCache does nothing: containerd has no builder.
func (e *Engine) PruneBuildCache(context.Context, time.Duration, int64) (int64, error) { return 0, nil }

// SnapshotRoot returns nothing: a removal only removes a name.
func (e *Engine) SnapshotRoot(context.Context) (string, error) { return "", nil }

// SnapshotDirs returns nothing, like SnapshotRoot.
func (e *Engine) SnapshotDirs(context.Context, string) ([]string, error) { return nil, nil }

// WrittenDirs returns nothing, like SnapshotRoot.
func (e *Engine) WrittenDirs(context.Context, string) ([]string, error) { return nil, nil }
