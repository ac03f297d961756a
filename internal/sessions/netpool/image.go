package netpool

import (
	"archive/tar"
	"context"
	"io"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/tinyelf"
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
	return e.Load(ctx, archive)
}

// archive is the image as `docker save` writes it, the same each time.
func archive(arch string) (io.Reader, error) {
	code, err := tinyelf.Pause(arch)
	if err != nil {
		return nil, err
	}
	return engine.ProgramImage(Image, &tar.Header{Name: program, Mode: 0o555}, code, v1.ConfigFile{
		OS: "linux", Architecture: arch, Config: v1.Config{
			Entrypoint: []string{"/" + program}, User: nobody, Labels: map[string]string{Label: "image"},
			// As pid 1 it would not hear another (pid_namespaces(7)), and an
			// engine that stops its containers would wait for it.
			StopSignal: "SIGKILL",
		},
	})
}
