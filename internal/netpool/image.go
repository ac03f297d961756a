package netpool

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"holdfast/internal/linux/tinyelf"
)

// Image is what the containers that hold networks are made of. Nothing pulls it:
// it is loaded into the engine when it is missing. Its number grows when what is
// in it changes.
const Image = "holdfast-pause:1"

// program is the image's only file. Tools know a container that just holds a
// network by that word.
const program = "pause"

// nobody is who it runs as; no file of the image is his.
const nobody = "65534:65534"

// load puts the image into the engine.
func load(ctx context.Context, e Engine) error {
	archive, err := archive(runtime.GOARCH)
	if err != nil {
		return err
	}
	return e.Load(ctx, bytes.NewReader(archive))
}

// archive is the image as `docker save` writes it, the same each time.
func archive(arch string) ([]byte, error) {
	code, err := tinyelf.Pause(arch)
	if err != nil {
		return nil, err
	}
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: program, Mode: 0o555, Size: int64(len(code))}); err != nil {
		return nil, err
	}
	if _, err := w.Write(code); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files.Bytes())), nil })
	if err != nil {
		return nil, err
	}
	image, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: arch, Config: v1.Config{
		Entrypoint: []string{"/" + program}, User: nobody, Labels: map[string]string{Label: "image"},
		// As pid 1 it would not hear another (pid_namespaces(7)), and an
		// engine that stops its containers would wait for it.
		StopSignal: "SIGKILL",
	}})
	if err != nil {
		return nil, err
	}
	if image, err = mutate.AppendLayers(image, layer); err != nil {
		return nil, err
	}
	tag, err := name.NewTag(Image)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := tarball.Write(tag, image, &out); err != nil {
		return nil, fmt.Errorf("make the image %s: %w", Image, err)
	}
	return out.Bytes(), nil
}
