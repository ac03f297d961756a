package registry

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"math/rand/v2"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/compression"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Layer is a layer of one file with random bytes. The seed determines the bytes.
type Layer struct {
	Seed uint64
	Size int64 // of the file in bytes; compressed the layer is a little larger
	// Stored skips the compression, which takes most of the time of creating a layer.
	Stored bool
	// Zstd compresses it with zstd instead of gzip.
	Zstd bool
}

// Image returns an image of such layers for linux on arch.
func Image(arch string, layers ...Layer) (v1.Image, error) {
	var made []v1.Layer
	for _, l := range layers {
		one, err := l.make()
		if err != nil {
			return nil, fmt.Errorf("make a layer: %w", err)
		}
		made = append(made, one)
	}
	image, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: arch})
	if err != nil {
		return nil, err
	}
	return mutate.AppendLayers(image, made...)
}

func (l Layer) make() (v1.Layer, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("file-%d", l.Seed), Mode: 0o644, Size: l.Size}); err != nil {
		return nil, err
	}
	var seed [32]byte
	for i := range 8 {
		seed[i] = byte(l.Seed >> (8 * i))
	}
	if _, err := io.CopyN(w, rand.NewChaCha8(seed), l.Size); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	if l.Zstd {
		return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(buf.Bytes())), nil
		}, tarball.WithCompression(compression.ZStd), tarball.WithMediaType(types.OCILayerZStd))
	}
	level := gzip.HuffmanOnly
	if l.Stored {
		level = gzip.NoCompression
	}
	return layer(buf.Bytes(), level)
}

// layer returns a layer with a tar archive. For random bytes use gzip.HuffmanOnly: they do
// not compress, and other levels take seconds.
func layer(archive []byte, level int) (v1.Layer, error) {
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(archive)), nil
	}, tarball.WithCompressionLevel(level), tarball.WithCompressedCaching)
}

// FromTar returns an image for linux on arch with one layer, a tar archive, and a command.
func FromTar(arch string, archive []byte, command ...string) (v1.Image, error) {
	image, err := Image(arch)
	if err != nil {
		return nil, err
	}
	return onTop(image, archive, command...)
}

// onTop returns the image with one more layer, a tar archive, and a command.
func onTop(image v1.Image, archive []byte, command ...string) (v1.Image, error) {
	top, err := layer(archive, gzip.HuffmanOnly)
	if err != nil {
		return nil, fmt.Errorf("make a layer: %w", err)
	}
	if image, err = mutate.AppendLayers(image, top); err != nil {
		return nil, err
	}
	return mutate.Config(image, v1.Config{Cmd: command})
}

// Push pushes an image as repository:tag and returns the compressed size of each layer, by
// digest.
func (r *Registry) Push(ctx context.Context, image v1.Image, tag string, o Options) (map[string]int64, error) {
	ref, err := name.ParseReference(r.host + "/" + tag)
	if err != nil {
		return nil, err
	}
	if err := remote.Write(ref, image, r.remote(ctx, o)...); err != nil {
		return nil, fmt.Errorf("push %s: %w", tag, err)
	}
	manifest, err := image.Manifest()
	if err != nil {
		return nil, err
	}
	sizes := map[string]int64{}
	for _, l := range manifest.Layers {
		sizes[l.Digest.String()] = l.Size
	}
	return sizes, nil
}

// PushList pushes a manifest list with one image as repository:tag.
func (r *Registry) PushList(ctx context.Context, image v1.Image, platform v1.Platform, tag string) error {
	ref, err := name.ParseReference(r.host + "/" + tag)
	if err != nil {
		return err
	}
	list := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &platform}})
	if err := remote.WriteIndex(ref, list, r.remote(ctx, Options{})...); err != nil {
		return fmt.Errorf("push list %s: %w", tag, err)
	}
	return nil
}

func (r *Registry) remote(ctx context.Context, o Options) []remote.Option {
	options := []remote.Option{remote.WithContext(ctx)}
	if o.User != "" {
		options = append(options, remote.WithAuth(&authn.Basic{Username: o.User, Password: o.Password}))
	}
	return options
}
