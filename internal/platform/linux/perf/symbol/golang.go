package symbol

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"sort"

	"holdfast/internal/platform/linux/perf/elffile"
)

// Positions in the header of the function table that every Go program has, even a
// stripped one (pcHeader, runtime/symtab.go). debug/gosym reads it too, but makes an
// object for each function: some 20 MB for a program like the kubelet, of which only
// a few names are needed here.
const (
	goMagic118  = 0xfffffff0
	goMagic120  = 0xfffffff1 // to Go 1.26 at least
	goHeader    = 8 + 8*8    // on 64 bits
	maxGoFuncs  = 8 << 20
	goFuncsSize = 8 // of an entry of the table: two numbers of 4 bytes
)

// goTable is the function table in a file.
type goTable struct {
	io.ReaderAt
	addr, size uint64
	header     []byte
}

// findGoTable finds the table in its section, or in .data.rel.ro, where C linkers put
// it in position-independent programs. It returns nil if there is none.
func findGoTable(f *elf.File) *goTable {
	if s := f.Section(".gopclntab"); elffile.Readable(s) {
		t := &goTable{ReaderAt: s, addr: s.Addr, size: s.Size, header: make([]byte, goHeader)}
		if _, err := s.ReadAt(t.header, 0); err == nil && t.fits(f.ByteOrder) {
			return t
		}
		return nil
	}
	s := f.Section(".data.rel.ro")
	if !elffile.Readable(s) || s.Size > maxTable || f.Section(".note.go.buildid") == nil {
		return nil
	}
	const align, step = 16, 1 << 20
	piece := make([]byte, step+goHeader)
	for at := uint64(0); at < s.Size; at += step {
		n, err := s.ReadAt(piece, int64(at))
		for i := 0; i+goHeader <= n && i < step; {
			// The magic number's last bytes and the zeros after it, in little-endian
			// order.
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

// fits reports whether a header is valid, with all its offsets inside the section.
func (t *goTable) fits(o binary.ByteOrder) bool {
	h := t.header
	if m := o.Uint32(h); m != goMagic118 && m != goMagic120 || h[4] != 0 || h[5] != 0 || h[7] != 8 {
		return false
	}
	count, names, funcs := t.word(o, 0), t.word(o, 3), t.word(o, 7)
	return count > 0 && count <= maxGoFuncs && names < t.size && funcs < t.size && count*goFuncsSize+4 <= t.size-funcs
}

// goFunctions names addresses by the table of a Go program, and returns none for
// other programs.
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
	list := make([]byte, count*goFuncsSize+4) // the last entry is the end
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
		var fn [8]byte // the function's offset and name
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

// goText is the address from which the table counts: runtime.text. Up to Go 1.25 it
// is in the header of the table, since then in the module's data. It is not the begin
// of the section .text, where a C linker puts its own code first.
func goText(f *elf.File, table *goTable) uint64 {
	const inHeader = 2
	if text := table.word(f.ByteOrder, inHeader); text != 0 {
		return text
	}
	if text := relocated(f, table.addr+8+8*inHeader); text != 0 {
		return text
	}
	module := f.Section(".go.module")
	if !elffile.Readable(module) {
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

// relocated is the value that the loader writes at an address of a
// position-independent program: the addend of its relocation (elf(5)), or 0.
func relocated(f *elf.File, addr uint64) uint64 {
	list := f.Section(".rela.dyn")
	if !elffile.Readable(list) || list.Type != elf.SHT_RELA || list.Size > maxTable {
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
