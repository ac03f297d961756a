package unwind

import (
	"cmp"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"holdfast/internal/platform/linux/perf/elffile"
)

// Bounds of a file's tables. A browser's have 20 MiB and 700,000 functions.
const (
	maxSection = 24 << 20
	maxEntries = 1 << 20
	maxRows    = 1 << 13
	// maxWork bounds the instructions that are executed for a file: an honest file needs
	// some tens for each function.
	maxWork = 32 << 20
)

// ErrNoTables means that a file has no tables that this package can use.
var ErrNoTables = errors.New("no tables for unwinding")

// Table has the tables of a file. It is for one goroutine.
type Table struct {
	loads    []load
	sections []*section // .eh_frame first
	rows     map[uint64]*row
	work     int // remaining instructions

	open  func() (File, error) // the file again; nil if it cannot be read
	calls map[uint64]bool      // of follows
}

// load is a part of a file that is mapped.
type load struct{ offset, size, addr uint64 }

// section is .eh_frame or .debug_frame.
type section struct {
	data    []byte
	addr    uint64
	eh      bool
	entries []entry // by address
	cies    map[uint64]*cie
}

// entry is a function (frame description entry).
type entry struct {
	begin, end uint64
	at         uint32 // of its length, in the section
}

// cie is what functions have in common (common information entry).
type cie struct {
	codeAlign uint64
	dataAlign int64
	returns   uint64 // the register of the return address
	encoding  byte
	augmented bool
	signal    bool
	begin     cursor // instructions
}

// Load reads the tables of a program or library. ErrNoTables.
func Load(r io.ReaderAt) (*Table, error) {
	f, err := elffile.Open(r)
	if err != nil {
		return nil, err
	}
	if f.Class != elf.ELFCLASS64 || f.Machine != elf.EM_X86_64 || f.ByteOrder != binary.LittleEndian {
		return nil, fmt.Errorf("%w: it is for %v", ErrNoTables, f.Machine)
	}
	t := &Table{rows: make(map[uint64]*row), work: maxWork}
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD {
			t.loads = append(t.loads, load{p.Off, p.Filesz, p.Vaddr})
		}
	}
	for _, name := range []string{".eh_frame", ".debug_frame"} {
		s := f.Section(name)
		if !elffile.Readable(s) || s.Size == 0 || s.Size > maxSection {
			continue
		}
		data, err := elffile.Section(s)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		t.add(&section{data: data, addr: s.Addr, eh: name == ".eh_frame"})
	}
	if len(t.sections) == 0 {
		return nil, ErrNoTables
	}
	return t, nil
}

// size is the memory of a Table without its rows, in bytes.
func (t *Table) size() int {
	n := 0
	for _, s := range t.sections {
		n += len(s.data) + 24*cap(s.entries)
	}
	return n
}

// add indexes a section.
func (t *Table) add(s *section) {
	s.cies = make(map[uint64]*cie)
	for at := uint64(0); at+4 <= uint64(len(s.data)) && len(s.entries) < maxEntries; {
		e, next := s.entry(at)
		if next <= at {
			break
		}
		if e.end > e.begin {
			s.entries = append(s.entries, e)
		}
		at = next
	}
	slices.SortFunc(s.entries, func(a, b entry) int { return cmp.Compare(a.begin, b.begin) })
	if len(s.entries) > 0 {
		t.sections = append(t.sections, s)
	}
}

// frame reads the header of an entry: the place of what it has in common with others
// (only of a function), its content, and the position of the next entry, which is 0 at
// the end.
func (s *section) frame(at uint64) (function bool, common uint64, in cursor, next uint64) {
	in = cursor{rest: s.data[at:], addr: s.addr + at}
	length := uint64(in.u32())
	wide := length == 0xffffffff
	if wide {
		length = in.u64()
	}
	if in.bad || length > uint64(len(in.rest)) {
		return false, 0, in, 0
	}
	here := uint64(len(s.data) - len(in.rest))
	next = here + length
	if length == 0 { // the end of what one object file has brought
		return false, 0, cursor{}, next
	}
	in.rest = in.rest[:length]
	var id uint64
	if wide && !s.eh {
		id = in.u64()
	} else {
		id = uint64(in.u32())
	}
	switch {
	case s.eh:
		return id != 0, here - id, in, next
	case wide:
		return id != ^uint64(0), id, in, next
	}
	return id != 0xffffffff, id, in, next
}

// entry reads the entry at a position. Its end is 0 if it is not a function.
func (s *section) entry(at uint64) (e entry, next uint64) {
	function, common, in, next := s.frame(at)
	if !function || next == 0 {
		return entry{}, next
	}
	c := s.cie(common)
	if c == nil {
		return entry{}, next
	}
	begin := in.pointer(c.encoding)
	size := in.number(c.encoding & encFormat &^ encSigned)
	if in.bad || begin+size < begin {
		return entry{}, next
	}
	return entry{begin, begin + size, uint32(at)}, next
}

// cie returns what functions have in common, nil if it is damaged.
func (s *section) cie(at uint64) *cie {
	c, ok := s.cies[at]
	if !ok {
		c = s.parseCIE(at)
		s.cies[at] = c
	}
	return c
}

func (s *section) parseCIE(at uint64) *cie {
	if at >= uint64(len(s.data)) {
		return nil
	}
	function, _, in, next := s.frame(at)
	if function || next == 0 {
		return nil
	}
	version := in.u8()
	augmentation := in.text(8)
	if version >= 4 {
		in.take(2) // the sizes of an address and of a segment
	}
	c := &cie{codeAlign: in.uleb(), dataAlign: in.sleb()}
	if version == 1 {
		c.returns = uint64(in.u8())
	} else {
		c.returns = in.uleb()
	}
	if len(augmentation) > 0 && !c.augment(augmentation, &in) || in.bad {
		return nil
	}
	c.begin = in
	return c
}

// augment reads the additions to a cie, and reports whether they are understood.
func (c *cie) augment(letters []byte, in *cursor) bool {
	if letters[0] != 'z' {
		return false
	}
	c.augmented = true
	length := in.uleb()
	if length > uint64(len(in.rest)) {
		return false
	}
	data := cursor{rest: in.rest[:length], addr: in.addr}
	in.take(length)
	for _, l := range letters[1:] {
		switch l {
		case 'R':
			c.encoding = data.u8()
		case 'L':
			data.u8()
		case 'P':
			if e := data.u8(); e != encOmit {
				data.number(e)
			}
		case 'S':
			c.signal = true
		default: // the length says where the instructions begin
			return !data.bad
		}
	}
	return !data.bad
}

// find returns the rules for a position in the file.
func (t *Table) find(offset uint64) *row {
	addr, ok := t.address(offset)
	if !ok {
		return none
	}
	r, ok := t.rows[addr]
	if !ok {
		r = t.calculate(addr)
		if len(t.rows) < maxRows {
			t.rows[addr] = r
		}
	}
	return r
}

// address is the address of a position in the file, in the file's own terms.
func (t *Table) address(offset uint64) (uint64, bool) {
	for _, l := range t.loads {
		if offset >= l.offset && offset-l.offset < l.size {
			return offset - l.offset + l.addr, true
		}
	}
	return 0, false
}

func (t *Table) calculate(addr uint64) *row {
	for _, s := range t.sections {
		i, exact := slices.BinarySearchFunc(s.entries, addr, func(e entry, a uint64) int { return cmp.Compare(e.begin, a) })
		if !exact {
			i--
		}
		if i >= 0 && addr < s.entries[i].end {
			return t.execute(s, s.entries[i], addr)
		}
	}
	return none
}

// execute executes a function's instructions up to an address.
func (t *Table) execute(s *section, e entry, addr uint64) *row {
	_, common, in, _ := s.frame(uint64(e.at))
	c := s.cie(common)
	in.pointer(c.encoding)
	in.number(c.encoding & encFormat &^ encSigned)
	if c.augmented {
		in.block()
	}
	p := program{cie: c, at: e.begin, until: addr, left: min(maxOperations, t.work)}
	budget := p.left
	ok := !in.bad && p.run(c.begin)
	p.start, p.at = p.now, e.begin
	ok = ok && p.run(in)
	t.work -= budget - max(p.left, 0)
	if !ok {
		return damaged
	}
	return p.row()
}
