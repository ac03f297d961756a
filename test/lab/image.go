package lab

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"

	"github.com/moby/moby/client"

	"holdfast"
)

// Image is an image with files of this host, in one layer.
type Image struct {
	Ref     string            // "busybox:latest"
	Files   map[string]string // path in the image → file of this host
	Links   map[string]string // path in the image → target of the symbolic link
	Names   map[string]string // path in the image → path in Files that is hard-linked to it
	Command []string
	Env     []string // KEY=value
	// More adds files. It may be nil.
	More func(*tar.Writer) error
}

// Import loads an image into the engine. An existing image of the same name loses its name.
func (e *Engine) Import(ctx context.Context, img Image) error {
	root, err := img.Tar()
	if err != nil {
		return fmt.Errorf("make image %s: %w", img.Ref, err)
	}
	changes, err := img.changes()
	if err != nil {
		return fmt.Errorf("make image %s: %w", img.Ref, err)
	}
	res, err := e.api.ImageImport(ctx,
		client.ImageImportSource{Source: bytes.NewReader(root), SourceName: "-"},
		img.Ref, client.ImageImportOptions{Changes: changes})
	if err != nil {
		return fmt.Errorf("import image %s: %w", img.Ref, err)
	}
	defer res.Close()
	// Errors after the first byte are in the stream.
	for dec := json.NewDecoder(res); ; {
		var line struct {
			Error string `json:"error"`
		}
		err := dec.Decode(&line)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && line.Error != "" {
			err = errors.New(line.Error)
		}
		if err != nil {
			return fmt.Errorf("import image %s: %w", img.Ref, err)
		}
	}
}

// changes returns the image's settings as lines of a Dockerfile.
func (img Image) changes() ([]string, error) {
	var changes []string
	if len(img.Command) > 0 {
		command, err := json.Marshal(img.Command)
		if err != nil {
			return nil, err
		}
		changes = append(changes, "CMD "+string(command))
	}
	for _, kv := range img.Env {
		key, value, _ := strings.Cut(kv, "=")
		changes = append(changes, fmt.Sprintf("ENV %s=%q", key, value))
	}
	return changes, nil
}

// Tar writes the image's file system as tar(5).
func (img Image) Tar() ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, dir := range []string{"tmp/", "etc/", "root/", "home/"} {
		mode := int64(0o755)
		if dir == "tmp/" {
			mode = 0o1777
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: mode}); err != nil {
			return nil, err
		}
	}
	for name, source := range img.Files {
		data, err := os.ReadFile(source)
		if err != nil {
			return nil, err
		}
		h := tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(name, "/"), Mode: 0o755, Size: int64(len(data))}
		if err := w.WriteHeader(&h); err != nil {
			return nil, err
		}
		if _, err := w.Write(data); err != nil {
			return nil, err
		}
	}
	for name, target := range img.Links {
		h := tar.Header{Typeflag: tar.TypeSymlink, Name: strings.TrimPrefix(name, "/"), Linkname: target, Mode: 0o777}
		if err := w.WriteHeader(&h); err != nil {
			return nil, err
		}
	}
	for name, file := range img.Names {
		h := tar.Header{Typeflag: tar.TypeLink, Name: strings.TrimPrefix(name, "/"), Linkname: strings.TrimPrefix(file, "/"), Mode: 0o755}
		if err := w.WriteHeader(&h); err != nil {
			return nil, err
		}
	}
	if img.More != nil {
		if err := img.More(w); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return buf.Bytes(), err
}

// ManyFiles returns base with that many additional files of size bytes, a hundred in each
// directory. Different seeds share no bytes.
func ManyFiles(base Image, ref string, files, size int, seed uint64) Image {
	base.Ref = ref
	base.More = func(w *tar.Writer) error {
		data := make([]byte, size)
		random := rand.New(rand.NewPCG(seed, 1))
		for i := range files {
			for at := 0; at+8 <= size; at += 8 {
				binary.NativeEndian.PutUint64(data[at:], random.Uint64())
			}
			name := fmt.Sprintf("data-%d/%d/%d", seed, i/100, i)
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(size)}); err != nil {
				return err
			}
			if _, err := w.Write(data); err != nil {
				return err
			}
		}
		return nil
	}
	return base
}

// Busybox returns an image of Debian's busybox-static with all its applets. Its command
// sleeps until it is killed.
func Busybox() (Image, error) {
	path, err := exec.LookPath("busybox")
	if err == nil {
		err = checkStatic(path)
	}
	if err != nil {
		return Image{}, holdfast.WithHint(fmt.Errorf("make an image of busybox: %w", err), "apt-get install busybox-static")
	}
	applets, err := exec.Command(path, "--list").Output()
	if err != nil {
		return Image{}, fmt.Errorf("list the applets of %s: %w", path, err)
	}
	img := Image{
		Ref:     "busybox:latest",
		Files:   map[string]string{"/bin/busybox": path},
		Links:   map[string]string{},
		Names:   map[string]string{}, // a hard link takes no inode: its creation costs a tenth of the CPU time
		Command: []string{"/bin/sleep", "inf"},
		Env:     []string{"PATH=/bin"},
	}
	for _, applet := range strings.Fields(string(applets)) {
		if applet != "busybox" {
			img.Names["/bin/"+applet] = "/bin/busybox"
		}
	}
	return img, nil
}

// Binary returns an image of one static program, started with args.
func Binary(ref, path string, args ...string) (Image, error) {
	if err := checkStatic(path); err != nil {
		return Image{}, fmt.Errorf("make an image of a program: %w", err)
	}
	return Image{
		Ref:     ref,
		Files:   map[string]string{"/program": path},
		Command: append([]string{"/program"}, args...),
	}, nil
}

// SelfImage returns an image of the running program, started with args. The program must be
// static (CGO_ENABLED=0).
func SelfImage(ref string, args ...string) (Image, error) {
	return Binary(ref, "/proc/self/exe", args...)
}

// checkStatic returns an error if the program at path cannot run in an image without
// libraries, because it needs a dynamic loader (PT_INTERP, elf(5)).
func checkStatic(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return holdfast.WithHint(fmt.Errorf("%s is linked dynamically", path), "build it with CGO_ENABLED=0")
		}
	}
	return nil
}
