package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/distribution/reference"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// fullName is a reference in containerd's form: with registry and tag.
func fullName(ref string) (string, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return "", holdfast.WithHint(fmt.Errorf("%q: %w", ref, err), "an image is named [registry/]name[:tag] or [registry/]name@sha256:…, in lower case")
	}
	return named.String(), nil
}

// image finds an image by name or id. The id is the digest of the name's target.
// engine.ErrNoImage.
func (e *Engine) image(ctx context.Context, ref string) (images.Image, error) {
	store := e.api.ImageService()
	if strings.HasPrefix(ref, "sha256:") {
		list, err := store.List(ctx, fmt.Sprintf("target.digest==%q", ref))
		switch {
		case err != nil:
			return images.Image{}, err
		case len(list) == 0:
			return images.Image{}, fmt.Errorf("%s: %w", ref, engine.ErrNoImage)
		}
		return list[0], nil
	}
	name, err := fullName(ref)
	if err != nil {
		return images.Image{}, fmt.Errorf("%w: %w", engine.ErrNoImage, err)
	}
	img, err := store.Get(ctx, name)
	if err != nil && isGone(err) {
		return img, fmt.Errorf("%s: %w", name, engine.ErrNoImage)
	}
	return img, err
}

// ImageID resolves a reference to the id of an image on this host.
func (e *Engine) ImageID(ctx context.Context, ref string) (string, error) {
	ctx = e.in(ctx)
	img, err := e.image(ctx, ref)
	return img.Target.Digest.String(), e.fail(ctx, err, "find image %s", ref)
}

// ImageDigest returns the image's id, which is the digest by which a registry serves it.
func (e *Engine) ImageDigest(ctx context.Context, name string) (string, error) {
	return e.ImageID(ctx, name)
}

// Load imports the images of an archive, as written by `docker save` or an OCI layout
// in tar(5), and extracts them.
func (e *Engine) Load(ctx context.Context, archive io.Reader) error {
	ctx = e.in(ctx)
	loaded, err := e.api.Import(ctx, archive)
	if err != nil {
		return e.fail(ctx, err, "load images")
	}
	if len(loaded) == 0 {
		return errors.New("load images: the archive has no image with a name")
	}
	for _, img := range loaded {
		if err := client.NewImage(e.api, img).Unpack(ctx, e.cfg.Snapshotter); err != nil {
			return e.fail(ctx, err, "load image %s", img.Name)
		}
	}
	return nil
}

// config is an image's configuration.
type config struct {
	ocispec.Image
	chain string // the snapshot of all its layers
}

// cacheLimit is the number of entries of a cache.
const cacheLimit = 256

// cache keeps properties of images, which never change, by the digest of the target.
type cache[V any] struct {
	mu   sync.Mutex
	kept map[string]V
}

// get returns an entry, and reads it first if it is not kept yet.
func (c *cache[V]) get(key string, read func() (V, error)) (V, error) {
	c.mu.Lock()
	v, ok := c.kept[key]
	c.mu.Unlock()
	if ok {
		return v, nil
	}
	v, err := read()
	if err != nil {
		return v, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.kept) >= cacheLimit || c.kept == nil {
		c.kept = map[string]V{}
	}
	c.kept[key] = v
	return v, nil
}

// config reads an image's configuration.
func (e *Engine) config(ctx context.Context, img images.Image) (config, error) {
	return e.configs.get(img.Target.Digest.String(), func() (config, error) {
		spec, err := client.NewImage(e.api, img).Spec(ctx)
		return config{spec, identity.ChainID(spec.RootFS.DiffIDs).String()}, err
	})
}
