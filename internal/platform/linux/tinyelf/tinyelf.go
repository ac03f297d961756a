// Package tinyelf makes static programs of a few instructions, for containers that
// only wait or exit.
package tinyelf

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
)

// program has the instructions for an architecture, as GOARCH names it.
type program struct {
	machine elf.Machine
	pause   []byte
	exit    func(code byte) []byte
}

func programs() map[string]program {
	return map[string]program{
		"amd64": {elf.EM_X86_64, []byte{
			0xb8, 34, 0, 0, 0, // mov eax, 34 (pause)
			0x0f, 0x05, // syscall
			0xeb, 0xf7, // jmp to the first
		}, func(code byte) []byte {
			return []byte{
				0xbf, code, 0, 0, 0, // mov edi, code
				0xb8, 231, 0, 0, 0, // mov eax, 231 (exit_group)
				0x0f, 0x05, // syscall
			}
		}},
		"arm64": {elf.EM_AARCH64, Words(
			0xd2800000, 0xd2800001, 0xd2800002, 0xd2800003, // mov x0…x3, 0
			0xd2800928, // mov x8, 73 (ppoll)
			0xd4000001, // svc 0
			0x17fffffa, // b to the first
		), func(code byte) []byte {
			return Words(
				0xd2800000|uint32(code)<<5, // mov x0, code
				0xd2800bc8,                 // mov x8, 94 (exit_group)
				0xd4000001,                 // svc 0
			)
		}},
	}
}

// Pause is a program for linux on arch that waits until it is killed, in under
// 200 bytes. An unknown arch is an error.
func Pause(arch string) ([]byte, error) {
	p, ok := programs()[arch]
	if !ok {
		return nil, fmt.Errorf("make a program that waits: the architecture %s is not supported", arch)
	}
	return Program(uint16(p.machine), p.pause), nil
}

// Exit is a program for linux on arch that exits with code, in under 200 bytes. An
// unknown arch is an error.
func Exit(arch string, code byte) ([]byte, error) {
	p, ok := programs()[arch]
	if !ok {
		return nil, fmt.Errorf("make a program that exits: the architecture %s is not supported", arch)
	}
	return Program(uint16(p.machine), p.exit(code)), nil
}

// Words encodes instructions of 32 bits, as on arm64.
func Words(instructions ...uint32) []byte {
	var b []byte
	for _, i := range instructions {
		b = binary.LittleEndian.AppendUint32(b, i)
	}
	return b
}

// Program makes a static program of these instructions: the file header, one segment
// that is the whole file, and the code (elf(5)). machine is e_machine; the code has
// to be position-independent.
func Program(machine uint16, code []byte) []byte {
	const (
		base    = 0x400000
		headers = 64 + 56
	)
	size := uint64(headers + len(code))
	var b bytes.Buffer
	for _, v := range []any{
		elf.Header64{
			Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
			Type:  uint16(elf.ET_EXEC), Machine: machine, Version: uint32(elf.EV_CURRENT), Entry: base + headers,
			Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1,
		},
		elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Vaddr: base, Paddr: base, Filesz: size, Memsz: size, Align: 0x1000},
		code,
	} {
		_ = binary.Write(&b, binary.LittleEndian, v) // writes to a buffer do not fail
	}
	return b.Bytes()
}
