package engine

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	goruntime "runtime"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"holdfast"
)

// What a trial makes; labelled so that a collector knows it for what it is.
const (
	trialImage   = "holdfast-trial"
	trialLabel   = "holdfast.trial"
	trialProgram = "/trial"
	trialCode    = 42        // that the program exits with
	trialMemory  = 256 << 20 // bytes; a sandbox's own comes out of it, too
)

// cleanTime is for removing what a trial made, however it ended.
const cleanTime = 20 * time.Second

// Trier is what a trial needs of an engine.
type Trier interface {
	Engine
	// RemoveImage removes an image by its name, which no container has.
	RemoveImage(ctx context.Context, ref string) error
}

// TryRuntime runs a container of a few hundred bytes with a runtime that the engine
// knows, and removes it again, its image too. by is a command that does the same
// by hand, for the hint. It is what adapters' TestRuntime consists of; any goroutine
// may call it.
func TryRuntime(ctx context.Context, e Trier, runtime, by string) (err error) {
	ref := fmt.Sprintf("%s:%d", trialImage, time.Now().UnixNano()) // no other trial has it
	archive, err := trialArchive(ref)
	if err != nil {
		return fmt.Errorf("make the image of a trial: %w", err)
	}
	if err := e.Load(ctx, archive); err != nil {
		return err
	}
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
	defer cancel()
	defer func() { err = errors.Join(err, e.RemoveImage(clean, ref)) }()
	id, err := e.Create(ctx, Spec{
		Image: ref, Entrypoint: []string{trialProgram}, Labels: map[string]string{trialLabel: runtime},
		Runtime: runtime, Network: "none", Memory: trialMemory,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Remove(clean, id)) }()
	if err := e.Start(ctx, id); err != nil {
		return holdfast.WithHint(fmt.Errorf("the runtime %q starts no container: %w", runtime, err), "its own words are above; try it with: "+by)
	}
	code, err := e.Wait(ctx, id)
	if err == nil && code != trialCode {
		err = fmt.Errorf("a program under the runtime %q ended with %d, not with %d", runtime, code, trialCode)
	}
	return err
}

// trialArchive is an image of one program, as `docker save` writes it.
func trialArchive(ref string) (io.Reader, error) {
	program, err := exitProgram(goruntime.GOARCH, trialCode)
	if err != nil {
		return nil, err
	}
	return ProgramImage(ref, &tar.Header{Name: strings.TrimPrefix(trialProgram, "/"), Mode: 0o755}, program, v1.ConfigFile{
		OS: "linux", Architecture: goruntime.GOARCH,
		Author: ref, // so that it is not another trial's image, too
	})
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
