// Command image makes the container image of a build, with the static program only. The
// result is an archive for `docker load`, `podman load` and `ctr images import`. The command
// uses no registry and no engine, and the same program gives the same bytes.
package main

import (
	"archive/tar"
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func main() {
	var (
		version = flag.String("version", "", "version as git describes it")
		arch    = flag.String("arch", "", "amd64 or arm64")
		binary  = flag.String("binary", "", "the program")
		out     = flag.String("out", "", "the archive")
		epoch   = flag.Int64("epoch", 0, "time of all files, in seconds since 1970")
		license = flag.String("license", "LICENSE", "file with the licence")
		notice  = flag.String("notice", "NOTICE.md", "file with the notices of third-party code")
	)
	flag.Parse()
	files := []file{
		{"usr/bin/holdfast", *binary, 0o755},
		{"usr/share/doc/holdfast/copyright", *license, 0o644},
		{"usr/share/doc/holdfast/NOTICE.md", *notice, 0o644},
	}
	if err := write(*out, *version, *arch, files, time.Unix(*epoch, 0).UTC()); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// file is a file of the image.
type file struct {
	name string // below the root
	from string
	mode int64
}

// write writes the archive.
func write(out, version, arch string, files []file, at time.Time) error {
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		text, err := archive(files, at)
		return io.NopCloser(bytes.NewReader(text)), err
	})
	if err != nil {
		return fmt.Errorf("the image's files: %w", err)
	}
	img, err := mutate.Append(empty.Image, mutate.Addendum{
		Layer: layer, History: v1.History{Author: "The Holdfast authors", Created: v1.Time{Time: at}, CreatedBy: "make dist"},
	})
	if err != nil {
		return err
	}
	img, err = mutate.ConfigFile(img, configOf(img, version, arch, at))
	if err != nil {
		return err
	}
	tags := map[name.Tag]v1.Image{}
	for _, tag := range []string{"latest", strings.ReplaceAll(version, "+", "-")} {
		t, err := name.NewTag("holdfast:" + tag)
		if err != nil {
			return err
		}
		// Each tag has its own value. With two tags of one value the archive would list
		// them in the random order of a map.
		tags[t] = &struct{ v1.Image }{img}
	}
	if err := tarball.MultiWriteToFile(out, tags); err != nil {
		return fmt.Errorf("write the image: %w", err)
	}
	return nil
}

// configOf returns the image's command and author.
func configOf(img v1.Image, version, arch string, at time.Time) *v1.ConfigFile {
	c, err := img.ConfigFile()
	if err != nil { // cannot fail: the image is in memory
		panic(err)
	}
	c = c.DeepCopy()
	c.Architecture, c.OS, c.Created = arch, "linux", v1.Time{Time: at}
	c.Config = v1.Config{
		Entrypoint: []string{"/usr/bin/holdfast"}, Cmd: []string{"agent"}, Env: []string{"PATH=/usr/bin"},
		Labels: map[string]string{
			"org.opencontainers.image.title": "holdfast", "org.opencontainers.image.version": version,
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	return c
}

// archive returns the layer: the files, and the directories that an agent needs.
func archive(files []file, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, dir := range []struct {
		name string
		mode int64
	}{{"etc/holdfast", 0o755}, {"run/holdfast", 0o700}, {"tmp", 0o1777}, {"var/lib/holdfast", 0o700}} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir.name + "/", Mode: dir.mode, ModTime: at}); err != nil {
			return nil, err
		}
	}
	for _, f := range files {
		text, err := os.ReadFile(f.from)
		if err != nil {
			return nil, err
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, ModTime: at, Size: int64(len(text))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(text); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), w.Close()
}
