// Package elffile opens ELF files that untrusted processes may have made: debug/elf trusts
// the lengths in a file's headers.
package elffile

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
)

// Bounds of the bytes that are read to find a file's parts, and of all reads afterwards.
const (
	maxHeaders = 32 << 20
	maxRead    = 1 << 30
)

// metered is a file with a limit on the bytes read.
type metered struct {
	io.ReaderAt
	left int
}

var errTooLong = errors.New("its headers are too long")

func (m *metered) ReadAt(b []byte, at int64) (int, error) {
	if m.left -= len(b); m.left < 0 {
		return 0, errTooLong
	}
	return m.ReaderAt.ReadAt(b, at)
}

// Open reads the headers of an ELF file, and bounds what is read from it, now and later.
func Open(r io.ReaderAt) (*elf.File, error) {
	meter := &metered{r, maxHeaders}
	f, err := elf.NewFile(meter)
	if err != nil {
		return nil, fmt.Errorf("read an ELF file: %w", err)
	}
	meter.left = maxRead
	return f, nil
}

// Section reads a section as it is in the file, without trust in its length: of a shorter
// file it returns what there is. The caller bounds the length.
func Section(s *elf.Section) ([]byte, error) {
	return io.ReadAll(io.NewSectionReader(s, 0, int64(s.Size)))
}

// Readable reports whether a section is in the file uncompressed.
func Readable(s *elf.Section) bool {
	return s != nil && s.Type != elf.SHT_NOBITS && s.Flags&elf.SHF_COMPRESSED == 0 && s.ReaderAt != nil
}
