package symbol

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"sort"
)

// Positions in the header of the table of functions that every Go program has,
// also a stripped one (pcHeader, runtime/symtab.go). debug/gosym reads it too, but
// makes an object of each function: some 20 MB for a program like the kubelet, of
// which a few names are wanted here.
const (
	goMagic118  = 0xfffffff0
	goMagic120  = 0xfffffff1 // to Go 1.26 at least
	goHeader    = 8 + 8*8    // on 64 bits
	maxGoFuncs  = 8 << 20
	goFuncsSize = 8 // of an entry of the table: two numbers of 4 bytes
)

// goTable is that table in a file.
type goTable struct {
	io.ReaderAt
	addr, size uint64
	header     []byte
}

// findGoTable finds it in its section, or in .data.rel.ro, into which C linkers put
// it where the program may lie anywhere; nil where there is none.
func findGoTable(f *elf.File) *goTable {
	if s := f.Section(".gopclntab"); readable(s) {
		t := &goTable{ReaderAt: s, addr: s.Addr, size: s.Size, header: make([]byte, goHeader)}
		if _, err := s.ReadAt(t.header, 0); err == nil && t.fits(f.ByteOrder) {
			return t
		}
		return nil
	}
	s := f.Section(".data.rel.ro")
	if !readable(s) || s.Size > maxTable || f.Section(".note.go.buildid") == nil {
		return nil
	}
	const align, step = 16, 1 << 20
	piece := make([]byte, step+goHeader)
	for at := uint64(0); at < s.Size; at += step {
		n, err := s.ReadAt(piece, int64(at))
		for i := 0; i+goHeader <= n && i < step; {
			// The magic number's last bytes and the zeros behind it, on little endians.
			next := bytes.Index(piece[i:n], []byte{0xff, 0xff, 0xff, 0, 0})
			if next < 0 {
				break
			}
			i += next
			begin := i - 1
			i++
			if begin < 0 || begin%align != 0 || begin+goHeader > n {
				continue
			}
			t := goTable{addr: s.Addr + at + uint64(begin), size: s.Size - at - uint64(begin), header: piece[begin : begin+goHeader]}
			if t.fits(f.ByteOrder) {
				t.header = bytes.Clone(t.header)
				t.ReaderAt = io.NewSectionReader(s, int64(at)+int64(begin), int64(t.size))
				return &t
			}
		}
		if err != nil {
			return nil
		}
	}
	return nil
}

func (t *goTable) word(o binary.ByteOrder, i int) uint64 { return o.Uint64(t.header[8+8*i:]) }

// fits reports whether a header is one, with all that it speaks of inside.
func (t *goTable) fits(o binary.ByteOrder) bool {
	h := t.header
	if m := o.Uint32(h); m != goMagic118 && m != goMagic120 || h[4] != 0 || h[5] != 0 || h[7] != 8 {
		return false
	}
	count, names, funcs := t.word(o, 0), t.word(o, 3), t.word(o, 7)
	return count > 0 && count <= maxGoFuncs && names < t.size && funcs < t.size && count*goFuncsSize+4 <= t.size-funcs
}

// goFunctions names addresses by the table of a Go program; none for others.
func goFunctions(f *elf.File, want wanted) (map[uint64]string, error) {
	if f.Class != elf.ELFCLASS64 {
		return nil, nil
	}
	table := findGoTable(f)
	if table == nil {
		return nil, nil
	}
	begin := goText(f, table)
	if begin == 0 {
		return nil, nil // no names rather than wrong ones
	}
	o := f.ByteOrder
	count, names, funcs := int(table.word(o, 0)), int64(table.word(o, 3)), int64(table.word(o, 7))
	list := make([]byte, count*goFuncsSize+4) // the last is the end
	if _, err := table.ReadAt(list, funcs); err != nil {
		return nil, fmt.Errorf("read the table of Go functions: %w", err)
	}
	entry := func(i int) uint64 { return begin + uint64(o.Uint32(list[i*goFuncsSize:])) }
	found := make(map[uint64]string)
	for _, a := range want {
		if a < entry(0) || a >= entry(count) {
			continue
		}
		i := sort.Search(count, func(i int) bool { return entry(i) > a }) - 1
		var fn [8]byte // where the function begins, and its name
		if _, err := table.ReadAt(fn[:], funcs+int64(o.Uint32(list[i*goFuncsSize+4:]))); err != nil {
			continue
		}
		if name := textAt(table, names+int64(int32(o.Uint32(fn[4:])))); name != "" {
			found[a] = name
		}
	}
	return found, nil
}

// Positions in moduledata (runtime/symtab.go), which Go 1.26 has in a section of its
// own, in words.
const moduleText = 22

// goText is where the functions begin, which the table counts from: runtime.text.
// Up to Go 1.25 the header of the table says so, since then the module's data. It is
// not the section .text, in which a C linker puts code of its own first.
func goText(f *elf.File, table *goTable) uint64 {
	const inHeader = 2
	if text := table.word(f.ByteOrder, inHeader); text != 0 {
		return text
	}
	if text := relocated(f, table.addr+8+8*inHeader); text != 0 {
		return text
	}
	module := f.Section(".go.module")
	if !readable(module) {
		return 0
	}
	var b [8]byte
	if _, err := module.ReadAt(b[:], moduleText*8); err != nil {
		return 0
	}
	if text := f.ByteOrder.Uint64(b[:]); text != 0 {
		return text
	}
	return relocated(f, module.Addr+moduleText*8)
}

// relocated is what the loader puts at an address of a program that may lie
// anywhere: the addend of its relocation (elf(5)); 0 where there is none.
func relocated(f *elf.File, addr uint64) uint64 {
	list := f.Section(".rela.dyn")
	if !readable(list) || list.Type != elf.SHT_RELA || list.Size > maxTable {
		return 0
	}
	const size = 24 // Elf64_Rela: where, kind and symbol, addend
	piece := make([]byte, 4096*size)
	for at := uint64(0); at < list.Size; at += uint64(len(piece)) {
		n, err := list.ReadAt(piece, int64(at))
		for b := piece[:n]; len(b) >= size; b = b[size:] {
			if f.ByteOrder.Uint64(b) == addr {
				return f.ByteOrder.Uint64(b[16:])
			}
		}
		if err != nil {
			break
		}
	}
	return 0
}
