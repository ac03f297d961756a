package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"holdfast"
	"holdfast/internal/engine"
)

var _ engine.RuntimeTester = (*Engine)(nil)

// What TestRuntime makes; labelled so that a collector knows it for what it is.
const (
	trialImage   = "holdfast-trial"
	trialLabel   = "holdfast.trial"
	trialProgram = "/trial"
	trialCode    = 42 // that the program exits with
)

// cleanTime is for removing what a trial made, however it ended.
const cleanTime = 20 * time.Second

// TestRuntime runs a container with the runtime.
func (e *Engine) TestRuntime(ctx context.Context, name string) (err error) {
	info, err := e.api.Info(ctx, client.InfoOptions{})
	if err != nil {
		return e.fail(ctx, err, "ask the engine for its runtimes")
	}
	if _, ok := info.Info.Runtimes[name]; !ok && !strings.Contains(name, ".") { // io.containerd.NAME.v1 need not be registered
		known := make([]string, 0, len(info.Info.Runtimes))
		for r := range info.Info.Runtimes {
			known = append(known, r)
		}
		slices.Sort(known)
		return holdfast.WithHint(fmt.Errorf("the engine has no runtime %q, it has %s: %w", name, strings.Join(known, ", "), holdfast.ErrNotFound),
			fmt.Sprintf(`install it, add it to "runtimes" in /etc/docker/daemon.json, and reload the engine; docs/untrusted-code.md says how for %s`, name))
	}
	image, err := e.importTrial(ctx)
	if err != nil {
		return err
	}
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
	defer cancel()
	defer func() {
		if _, rmErr := e.api.ImageRemove(clean, image, client.ImageRemoveOptions{Force: true}); rmErr != nil {
			err = errors.Join(err, e.fail(clean, rmErr, "remove image %s", image))
		}
	}()
	id, err := e.createTrial(ctx, name, image)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Remove(clean, id)) }()
	if err := e.Start(ctx, id); err != nil {
		return holdfast.WithHint(fmt.Errorf("the runtime %q starts no container: %w", name, err), "its own words are above; try it with: docker run --rm --runtime="+name)
	}
	code, err := e.Wait(ctx, id)
	if err == nil && code != trialCode {
		err = fmt.Errorf("a program under the runtime %q ended with %d, not with %d", name, code, trialCode)
	}
	return err
}

func (e *Engine) createTrial(ctx context.Context, runtime, image string) (string, error) {
	res, err := e.api.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config: &container.Config{
			Image: image, Entrypoint: []string{trialProgram}, Labels: map[string]string{trialLabel: runtime},
		},
		HostConfig: &container.HostConfig{
			Runtime: runtime, NetworkMode: "none",
			Resources: container.Resources{Memory: 256 << 20}, // runsc's own comes out of it, too
		},
	})
	if err != nil {
		return "", e.fail(ctx, err, "create a container with the runtime %s", runtime)
	}
	return res.ID, nil
}

// importTrial makes an image with one program in it and returns its reference,
// which no other trial has.
func (e *Engine) importTrial(ctx context.Context) (string, error) {
	program, err := exitProgram(runtime.GOARCH, trialCode)
	if err != nil {
		return "", err
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	head := &tar.Header{Name: strings.TrimPrefix(trialProgram, "/"), Mode: 0o755, Size: int64(len(program))}
	if err := errors.Join(w.WriteHeader(head), write(w, program), w.Close()); err != nil {
		return "", fmt.Errorf("make the image of a trial: %w", err)
	}
	ref := fmt.Sprintf("%s:%d", trialImage, time.Now().UnixNano())
	res, err := e.api.ImageImport(ctx, client.ImageImportSource{Source: &layer, SourceName: "-"}, ref, client.ImageImportOptions{})
	if err != nil {
		return "", e.fail(ctx, err, "import the image of a trial")
	}
	defer res.Close()
	var said bytes.Buffer
	if _, err := said.ReadFrom(res); err != nil {
		return "", e.fail(ctx, err, "import the image of a trial")
	}
	return ref, nil
}

func write(w *tar.Writer, b []byte) error {
	_, err := w.Write(b)
	return err
}

// exitProgram is a static Linux program of one segment that exits with code.
func exitProgram(arch string, code byte) ([]byte, error) {
	var machine elf.Machine
	var text []byte
	switch arch {
	case "amd64": // mov edi, code; mov eax, 231 (exit_group); syscall
		machine, text = elf.EM_X86_64, []byte{0xbf, code, 0, 0, 0, 0xb8, 231, 0, 0, 0, 0x0f, 0x05}
	case "arm64": // mov x0, #code; mov x8, #94 (exit_group); svc #0
		machine = elf.EM_AARCH64
		for _, word := range []uint32{0xd2800000 | uint32(code)<<5, 0xd2800008 | 94<<5, 0xd4000001} {
			text = binary.LittleEndian.AppendUint32(text, word)
		}
	default:
		return nil, fmt.Errorf("no program to try a runtime with on %s", arch)
	}
	const base = 0x400000
	const headers = 64 + 56 // of the file, and of its one segment (elf(5))
	size := uint64(headers + len(text))
	file := elf.Header64{
		Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT),
		Entry: base + headers, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1,
	}
	copy(file.Ident[:], elf.ELFMAG)
	file.Ident[elf.EI_CLASS], file.Ident[elf.EI_DATA], file.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)
	segment := elf.Prog64{
		Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X),
		Vaddr: base, Paddr: base, Filesz: size, Memsz: size, Align: 0x1000,
	}
	var out bytes.Buffer
	if err := errors.Join(binary.Write(&out, binary.LittleEndian, file), binary.Write(&out, binary.LittleEndian, segment)); err != nil {
		return nil, err
	}
	return append(out.Bytes(), text...), nil
}
