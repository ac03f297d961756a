package symbol

import (
	"debug/elf"
	"errors"
	"fmt"
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

var errGoTable = errors.New("the table of Go functions is not understood")

// goFunctions names addresses by the table of a Go program; none for others.
func goFunctions(f *elf.File, want wanted) (map[uint64]string, error) {
	table := f.Section(".gopclntab")
	if table == nil || table.Type == elf.SHT_NOBITS || f.Class != elf.ELFCLASS64 {
		return nil, nil
	}
	o := f.ByteOrder
	header := make([]byte, goHeader)
	if _, err := table.ReadAt(header, 0); err != nil {
		return nil, fmt.Errorf("%w: %w", errGoTable, err)
	}
	if m := o.Uint32(header); m != goMagic118 && m != goMagic120 || header[7] != 8 {
		return nil, fmt.Errorf("%w: magic %#x", errGoTable, m)
	}
	word := func(i int) uint64 { return o.Uint64(header[8+8*i:]) }
	count, names, funcs := word(0), int64(word(3)), int64(word(7))
	begin, ok := goText(f, word(2))
	if !ok {
		return nil, nil
	}
	if count > maxGoFuncs || names < 0 || funcs < 0 || uint64(funcs)+count*goFuncsSize > table.Size {
		return nil, fmt.Errorf("%w: %d functions in %d bytes", errGoTable, count, table.Size)
	}
	list := make([]byte, count*goFuncsSize+4) // the last is the end
	if _, err := table.ReadAt(list, funcs); err != nil {
		return nil, fmt.Errorf("%w: %w", errGoTable, err)
	}
	entry := func(i int) uint64 { return begin + uint64(o.Uint32(list[i*goFuncsSize:])) }
	found := make(map[uint64]string)
	for _, a := range want {
		if count == 0 || a < entry(0) || a >= entry(int(count)) {
			continue
		}
		i := sort.Search(int(count), func(i int) bool { return entry(i) > a }) - 1
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

// goText is where the functions begin, which the table counts from: runtime.text.
// Up to Go 1.25 the header says so, unless the linker left that to the loader. Then
// it is the section .text, where no other linker put code of its own before it:
// without certainty there are no names rather than wrong ones.
func goText(f *elf.File, header uint64) (uint64, bool) {
	if header != 0 {
		return header, true
	}
	text := f.Section(".text")
	if text == nil || f.Section(".dynamic") != nil {
		return 0, false
	}
	return text.Addr, true
}
