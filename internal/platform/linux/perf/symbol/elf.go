package symbol

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"

	"holdfast/internal/platform/linux/perf/elffile"
)

// maxTable bounds a symbol table in bytes. A browser's has 100 MiB.
const maxTable = 256 << 20

// ELF names the functions at offsets of a program's file. Offsets come from a
// mapping, so the address of the mapping does not matter. Offsets without a name are
// left out. p finds the symbols of a stripped file; without p.Open they are not looked
// for.
func ELF(r io.ReaderAt, p Program, offsets []uint64) (map[uint64]string, error) {
	f, err := elffile.Open(r)
	if err != nil {
		return nil, err
	}
	addrs := make(map[uint64]uint64, len(offsets)) // address in the file's own terms → offset
	for _, off := range offsets {
		for _, p := range f.Progs {
			if p.Type == elf.PT_LOAD && off >= p.Off && off-p.Off < p.Filesz {
				addrs[off-p.Off+p.Vaddr] = off
				break
			}
		}
	}
	named := make(map[uint64]string, len(offsets))
	var errs []error
	for _, source := range []func(*elf.File, wanted) (map[uint64]string, error){
		goFunctions, // sorted already: no need to walk over 100,000 symbols
		func(f *elf.File, w wanted) (map[uint64]string, error) { return symbols(f, elf.SHT_SYMTAB, w) },
		func(f *elf.File, w wanted) (map[uint64]string, error) { return symbols(f, elf.SHT_DYNSYM, w) },
		func(f *elf.File, w wanted) (map[uint64]string, error) { return debugSymbols(f, p, w) },
	} {
		var left []uint64
		for a, off := range addrs {
			if _, ok := named[off]; !ok {
				left = append(left, a)
			}
		}
		if len(left) == 0 {
			break
		}
		names, err := source(f, newWanted(left))
		if err != nil {
			errs = append(errs, err)
		}
		for a, name := range names {
			named[addrs[a]] = name
		}
	}
	if len(named) == 0 {
		return nil, errors.Join(errs...)
	}
	return named, nil
}

// function is the part of a symbol that is kept.
type function struct {
	size uint64
	name uint32 // offset in the string table
}

// symbols names addresses by a symbol table (elf(5)), which it reads in pieces and
// does not keep.
func symbols(f *elf.File, kind elf.SectionType, want wanted) (map[uint64]string, error) {
	table := f.SectionByType(kind)
	if !elffile.Readable(table) {
		return nil, nil
	}
	size := 24 // Elf64_Sym
	if f.Class == elf.ELFCLASS32 {
		size = 16
	}
	if table.Size > maxTable || int(table.Link) >= len(f.Sections) || !elffile.Readable(f.Sections[table.Link]) {
		return nil, fmt.Errorf("a symbol table of %d bytes is not read", table.Size)
	}
	near := newNearest(want)
	piece := make([]byte, 4096*size)
	for at := uint64(0); at < table.Size; at += uint64(len(piece)) {
		n, err := table.ReadAt(piece[:min(uint64(len(piece)), table.Size-at)], int64(at))
		for b := piece[:n]; len(b) >= size; b = b[size:] {
			if begin, what, ok := oneSymbol(f, b); ok {
				near.offer(begin, what)
			}
		}
		if err == io.EOF {
			break // it is shorter than its header says
		} else if err != nil {
			return nil, fmt.Errorf("read a symbol table: %w", err)
		}
	}
	names := make(map[uint64]string)
	strings := f.Sections[table.Link]
	for i, c := range near.settle() {
		a := want[i]
		if !c.known || c.what.size > 0 && a-c.begin >= c.what.size {
			continue
		}
		if name := textAt(strings, int64(c.what.name)); name != "" {
			names[a] = name
		}
	}
	return names, nil
}

// oneSymbol reads a symbol, and reports whether it is a function of this file.
func oneSymbol(f *elf.File, b []byte) (begin uint64, what function, ok bool) {
	o := f.ByteOrder
	var info byte
	var section uint16
	what.name = o.Uint32(b)
	if f.Class == elf.ELFCLASS32 {
		begin, what.size = uint64(o.Uint32(b[4:])), uint64(o.Uint32(b[8:]))
		info, section = b[12], o.Uint16(b[14:])
	} else {
		info, section = b[4], o.Uint16(b[6:])
		begin, what.size = o.Uint64(b[8:]), o.Uint64(b[16:])
	}
	kind := elf.ST_TYPE(info)
	return begin, what, (kind == elf.STT_FUNC || kind == elf.STT_GNU_IFUNC) && elf.SectionIndex(section) != elf.SHN_UNDEF
}

// textAt reads a zero-terminated string, or "". Most are short.
func textAt(r io.ReaderAt, at int64) string {
	var short [96]byte
	if text, ok := cutText(r, at, short[:]); ok {
		return clean(text)
	}
	long := make([]byte, maxName)
	text, ok := cutText(r, at, long)
	if !ok && len(text) < maxName {
		return ""
	}
	return clean(text)
}

func cutText(r io.ReaderAt, at int64, b []byte) ([]byte, bool) {
	n, _ := r.ReadAt(b, at) // a truncated string has no terminator
	text, _, ok := bytes.Cut(b[:n], []byte{0})
	return text, ok
}
