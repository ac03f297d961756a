package docker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// noName is the engine's placeholder for a missing name (moby,
// daemon/images/images.go).
const noName = "<none>"

// Images lists all images, including intermediate ones.
func (e *Engine) Images(ctx context.Context) ([]engine.Image, error) {
	res, err := e.api().ImageList(ctx, client.ImageListOptions{All: true})
	if err != nil {
		return nil, e.fail(ctx, err, "list images")
	}
	list := make([]engine.Image, 0, len(res.Items))
	for _, i := range res.Items {
		list = append(list, engine.Image{
			ID: i.ID, Parent: i.ParentID, Refs: namesOf(i.ID, i.RepoTags, i.RepoDigests),
			Labels: i.Labels, Created: time.Unix(i.Created, 0), Size: i.Size,
		})
	}
	return list, nil
}

// InspectImage returns one image, by name or id, and the digests of its layers,
// lowest first. The digests never change. engine.ErrNoImage.
func (e *Engine) InspectImage(ctx context.Context, ref string) (engine.Image, []string, error) {
	res, err := e.api().ImageInspect(ctx, ref)
	if err != nil {
		return engine.Image{}, nil, e.fail(ctx, err, "find image %s", ref)
	}
	img := engine.Image{ID: res.ID, Refs: namesOf(res.ID, res.RepoTags, res.RepoDigests), Created: parseTime(res.Created), Size: res.Size}
	if res.Config != nil {
		img.Labels = res.Config.Labels
	}
	return img, res.RootFS.Layers, nil
}

// namesOf returns an image's tags and digests. On the containerd image store the engine adds
// the image's id as a digest to each repository of a tag when it inspects an image, and to
// one of them when it lists images (moby, daemon/containerd/image_list.go and
// image_inspect.go). Such a digest is no name of its own: it goes with the tag.
func namesOf(id string, tags, digests []string) []string {
	implied := map[string]bool{}
	for _, tag := range tags {
		implied[tag[:max(strings.LastIndexByte(tag, ':'), 0)]+"@"+id] = true
	}
	return slices.DeleteFunc(slices.Concat(tags, digests), func(ref string) bool { return implied[ref] || strings.HasPrefix(ref, noName) })
}

// Holders lists all containers, in any state.
func (e *Engine) Holders(ctx context.Context) ([]engine.Holder, error) {
	res, err := e.api().ContainerList(ctx, client.ContainerListOptions{All: true})
	if err != nil {
		return nil, e.fail(ctx, err, "list containers")
	}
	list := make([]engine.Holder, 0, len(res.Items))
	for _, c := range res.Items {
		h := engine.Holder{
			ID: c.ID, Name: nameOf(c.Names), Image: c.Image, ImageID: c.ImageID, State: string(c.State),
			Created: time.Unix(c.Created, 0), Labels: c.Labels, Networks: networksOf(c),
		}
		for _, m := range c.Mounts {
			if m.Name != "" {
				h.Volumes = append(h.Volumes, m.Name)
			}
		}
		list = append(list, h)
	}
	return list, nil
}

// networksOf returns all names and ids of networks in a container's settings. For a
// container that never started the engine reports only the name.
func networksOf(c container.Summary) []string {
	words := map[string]bool{c.HostConfig.NetworkMode: true}
	if c.NetworkSettings != nil {
		for name, n := range c.NetworkSettings.Networks {
			words[name] = true
			if n != nil {
				words[n.NetworkID] = true
			}
		}
	}
	delete(words, "")
	return slices.Sorted(maps.Keys(words))
}

// ownNetworks are the networks that the engine makes itself. docker_gwbridge connects
// a swarm's containers to the host's network (moby, daemon/cluster).
var ownNetworks = [...]string{"bridge", "host", "none", "docker_gwbridge"}

// Networks lists the networks with all the labels; a value of "" matches any.
func (e *Engine) Networks(ctx context.Context, labels map[string]string) ([]engine.Network, error) {
	res, err := e.api().NetworkList(ctx, client.NetworkListOptions{Filters: labelFilters(labels)})
	if err != nil {
		return nil, e.fail(ctx, err, "list networks")
	}
	list := make([]engine.Network, 0, len(res.Items))
	for _, n := range res.Items {
		list = append(list, engine.Network{
			ID: n.ID, Name: n.Name, Created: n.Created, Labels: n.Labels,
			Fixed: n.Ingress || n.ConfigOnly || n.Scope != "local" || slices.Contains(ownNetworks[:], n.Name),
		})
	}
	return list, nil
}

// Volumes lists all volumes, without their sizes.
func (e *Engine) Volumes(ctx context.Context) ([]engine.Volume, error) {
	res, err := e.api().VolumeList(ctx, client.VolumeListOptions{})
	if err != nil {
		return nil, e.fail(ctx, err, "list volumes")
	}
	list := make([]engine.Volume, 0, len(res.Items))
	for _, v := range res.Items {
		list = append(list, engine.Volume{Name: v.Name, Driver: v.Driver, Created: parseTime(v.CreatedAt), Labels: v.Labels})
	}
	return list, nil
}

// RemoveImage removes one name of an image, and with the last name the image, without
// force. It keeps the parent images, with or without a name. An id is for an image
// without a name. engine.ErrRefused; holdfast.ErrNotFound if it is gone already.
func (e *Engine) RemoveImage(ctx context.Context, ref string) error {
	_, err := e.api().ImageRemove(ctx, ref, client.ImageRemoveOptions{})
	return e.refusal(ctx, err, "remove image %s", ref)
}

// RemoveStopped deletes a stopped container, without force and without its volumes.
// It returns errors like RemoveImage.
func (e *Engine) RemoveStopped(ctx context.Context, id string) error {
	_, err := e.api().ContainerRemove(ctx, id, client.ContainerRemoveOptions{})
	return e.refusal(ctx, err, "remove container %s", id)
}

// RemoveUnusedNetwork deletes a network unless anything is connected to it; unlike
// RemoveNetwork it removes no stale endpoints. It returns errors like RemoveImage.
func (e *Engine) RemoveUnusedNetwork(ctx context.Context, id string) error {
	_, err := e.api().NetworkRemove(ctx, id, client.NetworkRemoveOptions{})
	return e.refusal(ctx, err, "remove network %s", id)
}

// RemoveVolume deletes a volume that no container uses. It returns errors like
// RemoveImage.
func (e *Engine) RemoveVolume(ctx context.Context, name string) error {
	_, err := e.api().VolumeRemove(ctx, name, client.VolumeRemoveOptions{})
	return e.refusal(ctx, err, "remove volume %s", name)
}

// PruneBuildCache deletes build cache that was not used for the duration unused,
// keeps at least keep bytes, and returns the bytes freed. Cache that running builds
// use stays.
func (e *Engine) PruneBuildCache(ctx context.Context, unused time.Duration, keep int64) (int64, error) {
	filters := client.Filters{}
	if unused > 0 {
		filters.Add("until", unused.String())
	}
	res, err := e.api().BuildCachePrune(ctx, client.BuildCachePruneOptions{All: true, ReservedSpace: keep, Filters: filters})
	if err != nil {
		return 0, e.refusal(ctx, err, "prune the build cache")
	}
	return int64(min(res.Report.SpaceReclaimed, 1<<62)), nil
}

// refusal is fail for removals: the engine answers 409, or for networks 403, for an
// object in use, and 404 for one that is gone (moby, errdefs).
func (e *Engine) refusal(ctx context.Context, err error, doing string, args ...any) error {
	switch {
	case err == nil:
		return nil
	case errdefs.IsNotFound(err):
		return fmt.Errorf("%s: %w: %w", fmt.Sprintf(doing, args...), holdfast.ErrNotFound, err)
	case errdefs.IsConflict(err), errdefs.IsPermissionDenied(err):
		return fmt.Errorf("%s: %w: %w", fmt.Sprintf(doing, args...), engine.ErrRefused, err)
	}
	return e.fail(ctx, err, doing, args...)
}
