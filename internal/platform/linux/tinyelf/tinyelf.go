// Package tinyelf makes static programs of a few instructions, for containers that
// only wait or exit.
package tinyelf

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// pause is a program that waits until it is killed: by architecture, as GOARCH
// names it, its ELF machine (elf(5), e_machine) and its instructions.
var pause = map[string]struct {
	machine uint16
	code    []byte
}{
	"amd64": {62, []byte{
		0xb8, 34, 0, 0, 0, // mov eax, 34 (pause)
		0x0f, 0x05, // syscall
		0xeb, 0xf7, // jmp to the first
	}},
	"arm64": {183, Words(
		0xd2800000, 0xd2800001, 0xd2800002, 0xd2800003, // mov x0…x3, 0
		0xd2800928, // mov x8, 73 (ppoll)
		0xd4000001, // svc 0
		0x17fffffa, // b to the first
	)},
}

// Pause is a program for linux on arch that waits until it is killed, in under
// 200 bytes. An arch that it is not written for is an error.
func Pause(arch string) ([]byte, error) {
	p, ok := pause[arch]
	if !ok {
		return nil, fmt.Errorf("make a program that waits: there is none for %s", arch)
	}
	return Program(p.machine, p.code), nil
}

// Exit is a program for linux on arch that exits with code, in under 200 bytes. An
// arch that it is not written for is an error.
func Exit(arch string, code byte) ([]byte, error) {
	switch arch {
	case "amd64":
		return Program(pause[arch].machine, []byte{
			0xbf, code, 0, 0, 0, // mov edi, code
			0xb8, 231, 0, 0, 0, // mov eax, 231 (exit_group)
			0x0f, 0x05, // syscall
		}), nil
	case "arm64":
		return Program(pause[arch].machine, Words(
			0xd2800000|uint32(code)<<5, // mov x0, code
			0xd2800bc8,                 // mov x8, 94 (exit_group)
			0xd4000001,                 // svc 0
		)), nil
	}
	return nil, fmt.Errorf("make a program that exits: there is none for %s", arch)
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
	var b bytes.Buffer
	put := func(v any) { _ = binary.Write(&b, binary.LittleEndian, v) } // writes to a buffer do not fail
	b.WriteString("\x7fELF\x02\x01\x01")
	b.Write(make([]byte, 9))
	put([]uint16{2, machine}) // an executable
	put(uint32(1))
	put([]uint64{base + headers, 64, 0}) // entry, program headers, no sections
	put(uint32(0))
	put([]uint16{64, 56, 1, 0, 0, 0})
	put([]uint32{1, 5}) // load it, to be read and executed
	size := uint64(headers + len(code))
	put([]uint64{0, base, base, size, size, 0x1000})
	b.Write(code)
	return b.Bytes()
}
