package registry

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"holdfast/internal/platform/linux/tinyelf"
)

// Programs of a runnable image, each a few instructions.
const (
	Pause = "/pause" // waits until it is killed
	Done  = "/done"  // exits with the number of its arguments
	Say   = "/say"   // writes a line
)

// code has the ELF machine (elf(5), e_machine) and the instructions of the programs except
// tinyelf.Pause, by architecture.
var code = map[string]struct {
	machine   uint16
	done, say []byte
}{
	"amd64": {62,
		[]byte{
			0x8b, 0x3c, 0x24, // mov edi, [rsp] (argc)
			0xff, 0xcf, // dec edi
			0xb8, 60, 0, 0, 0, // mov eax, 60 (exit)
			0x0f, 0x05, // syscall
		},
		append([]byte{
			0xb8, 1, 0, 0, 0, // mov eax, 1 (write)
			0xbf, 1, 0, 0, 0, // mov edi, 1
			0x48, 0x8d, 0x35, 16, 0, 0, 0, // lea rsi, the line
			0xba, 3, 0, 0, 0, // mov edx, 3
			0x0f, 0x05, // syscall
			0xb8, 60, 0, 0, 0, // mov eax, 60 (exit)
			0x31, 0xff, // xor edi, edi
			0x0f, 0x05, // syscall
		}, "up\n"...)},
	"arm64": {183,
		tinyelf.Words(
			0xf94003e0, // ldr x0, [sp] (argc)
			0xd1000400, // sub x0, x0, 1
			0xd2800ba8, // mov x8, 93 (exit)
			0xd4000001, // svc 0
		),
		append(tinyelf.Words(
			0xd2800020, // mov x0, 1
			0x100000e1, // adr x1, the line
			0xd2800062, // mov x2, 3
			0xd2800808, // mov x8, 64 (write)
			0xd4000001, // svc 0
			0xd2800000, // mov x0, 0
			0xd2800ba8, // mov x8, 93 (exit)
			0xd4000001, // svc 0
		), "up\n"...)},
}

// Runnable returns an image of random layers with a unique layer on top. That layer has the
// programs Pause (the command), Done and Say, and a file of size random bytes. With a size
// of 1,000 it is smaller than 2 KB.
func Runnable(arch string, seed uint64, size int64, below ...Layer) (v1.Image, error) {
	programs, ok := code[arch]
	if !ok {
		return nil, fmt.Errorf("make a runnable image: there is no program for %s", arch)
	}
	pause, err := tinyelf.Pause(arch)
	if err != nil {
		return nil, err
	}
	image, err := Image(arch, below...)
	if err != nil {
		return nil, err
	}
	random := make([]byte, size)
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	_, _ = rand.NewChaCha8(key).Read(random) // never fails
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range []struct {
		name string
		data []byte
	}{{Pause, pause}, {Done, tinyelf.Program(programs.machine, programs.done)}, {Say, tinyelf.Program(programs.machine, programs.say)}, {"/random", random}} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.name[1:], Mode: 0o755, Size: int64(len(f.data))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return onTop(image, buf.Bytes(), Pause)
}
