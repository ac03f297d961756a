package engine

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// ProgramImage makes an image of one program and nothing else, for Load: an archive
// as `docker save` writes it, with the same bytes each time. head is the file's name
// below the root and its mode; its size is set. Any goroutine may call it.
func ProgramImage(ref string, head *tar.Header, program []byte, c v1.ConfigFile) (*bytes.Reader, error) {
	var out bytes.Buffer
	if err := writeProgramImage(&out, ref, head, program, c); err != nil {
		return nil, fmt.Errorf("make the image %s: %w", ref, err)
	}
	return bytes.NewReader(out.Bytes()), nil
}

func writeProgramImage(to io.Writer, ref string, head *tar.Header, program []byte, c v1.ConfigFile) error {
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	head.Size = int64(len(program))
	err := w.WriteHeader(head)
	if err == nil {
		_, err = w.Write(program)
	}
	if err := errors.Join(err, w.Close()); err != nil {
		return err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files.Bytes())), nil })
	if err != nil {
		return err
	}
	image, err := mutate.ConfigFile(empty.Image, &c)
	if err == nil {
		image, err = mutate.AppendLayers(image, layer)
	}
	if err != nil {
		return err
	}
	tag, err := name.NewTag(ref)
	if err != nil {
		return err
	}
	return tarball.Write(tag, image, to)
}
