package lab

import (
	"bytes"
	"fmt"
	"io"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Archive writes the image in the format of `docker save`.
func (img Image) Archive() (io.Reader, error) {
	root, err := img.Tar()
	if err != nil {
		return nil, fmt.Errorf("make image %s: %w", img.Ref, err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(root)), nil })
	if err != nil {
		return nil, fmt.Errorf("make image %s: %w", img.Ref, err)
	}
	made, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, fmt.Errorf("make image %s: %w", img.Ref, err)
	}
	made, err = mutate.ConfigFile(made, img.config(made))
	if err != nil {
		return nil, fmt.Errorf("make image %s: %w", img.Ref, err)
	}
	tag, err := name.NewTag(img.Ref)
	if err != nil {
		return nil, fmt.Errorf("make image %s: %w", img.Ref, err)
	}
	var out bytes.Buffer
	if err := tarball.Write(tag, made, &out); err != nil {
		return nil, fmt.Errorf("make image %s: %w", img.Ref, err)
	}
	return &out, nil
}

// config returns the configuration of made, with the settings of Image.
func (img Image) config(made v1.Image) *v1.ConfigFile {
	c := &v1.ConfigFile{}
	if now, err := made.ConfigFile(); err == nil {
		c = now.DeepCopy()
	}
	c.OS, c.Architecture = "linux", runtime.GOARCH
	c.Config.Cmd, c.Config.Env = img.Command, img.Env
	return c
}
