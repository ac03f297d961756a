package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
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
		if err != nil || len(list) > 0 {
			return first(list), err
		}
		return images.Image{}, fmt.Errorf("%s: %w", ref, engine.ErrNoImage)
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

func first(list []images.Image) images.Image {
	if len(list) == 0 {
		return images.Image{}
	}
	return list[0]
}

// ImageID resolves a reference to the id of an image on this host.
func (e *Engine) ImageID(ctx context.Context, ref string) (string, error) {
	ctx = e.in(ctx)
	img, err := e.image(ctx, ref)
	if err != nil {
		return "", e.fail(ctx, err, "find image %s", ref)
	}
	return img.Target.Digest.String(), nil
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

// imageCache keeps the configurations of images, which never change, by the digest of
// the target.
type imageCache struct {
	mu    sync.Mutex
	kept  map[string]config
	sizes map[string]int64
}

func (c *imageCache) size(key string) (int64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok := c.sizes[key]
	return n, ok
}

func (c *imageCache) setSize(key string, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.sizes) >= cacheLimit || c.sizes == nil {
		c.sizes = map[string]int64{}
	}
	c.sizes[key] = n
}

// cacheLimit is the number of entries.
const cacheLimit = 256

// config reads an image's configuration.
func (e *Engine) config(ctx context.Context, img images.Image) (config, error) {
	key := img.Target.Digest.String()
	e.images.mu.Lock()
	c, ok := e.images.kept[key]
	e.images.mu.Unlock()
	if ok {
		return c, nil
	}
	at := client.NewImage(e.api, img)
	desc, err := at.Config(ctx)
	if err != nil {
		return c, err
	}
	text, err := content.ReadBlob(ctx, e.api.ContentStore(), desc)
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(text, &c.Image); err != nil {
		return c, fmt.Errorf("the configuration of %s: %w", img.Name, err)
	}
	c.chain = identity.ChainID(c.RootFS.DiffIDs).String()
	e.images.mu.Lock()
	defer e.images.mu.Unlock()
	if len(e.images.kept) >= cacheLimit || e.images.kept == nil {
		e.images.kept = map[string]config{}
	}
	e.images.kept[key] = c
	return c, nil
}
