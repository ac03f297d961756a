package network

import (
	"archive/tar"
	"context"
	"io"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/tinyelf"
)

// Image is the image of the containers that hold networks. The pool loads it into the
// engine if it is missing; it is never pulled. Its number increases when its content
// changes.
const Image = "holdfast-pause:1"

// program is the image's only file. Tools recognize a container that only holds a
// network by this name.
const program = "pause"

// user is `nobody`, the user of the program. No file of the image belongs to it.
const user = "65534:65534"

// load loads the image into the engine.
func (p *Pool) load(ctx context.Context) error {
	archive, err := archive(runtime.GOARCH)
	if err != nil {
		return err
	}
	return p.deps.Engine.Load(ctx, archive)
}

// archive returns the image in the format of `docker save`. Its bytes are always the
// same.
func archive(arch string) (io.Reader, error) {
	code, err := tinyelf.Pause(arch)
	if err != nil {
		return nil, err
	}
	return engine.ProgramImage(Image, &tar.Header{Name: program, Mode: 0o555}, code, v1.ConfigFile{
		OS: "linux", Architecture: arch, Config: v1.Config{
			Entrypoint: []string{"/" + program}, User: user, Labels: map[string]string{Label: "image"},
			// As pid 1 the program ignores other signals (pid_namespaces(7)), so an
			// engine that stops its containers would wait for it.
			StopSignal: "SIGKILL",
		},
	})
}
