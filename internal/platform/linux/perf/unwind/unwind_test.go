package unwind

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"holdfast/internal/platform/linux/perf/elffile"
)

// registerNames are the names that readelf prints, by number.
func registerNames() []string {
	return []string{"rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "ra"}
}

// The rules of every function of this host's C and C++ libraries are those that readelf
// prints.
func TestRulesAreThoseOfReadelf(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: needs binutils")
	}
	for _, name := range []string{"libc.so.6", "libm.so.6", "libstdc++.so.6", "ld-linux-x86-64.so.2"} {
		paths, err := filepath.Glob("/lib/x86_64-linux-gnu/" + name)
		if err != nil || len(paths) == 0 {
			paths, _ = filepath.Glob("/usr/lib/x86_64-linux-gnu/" + name)
		}
		if len(paths) == 0 {
			t.Errorf("%s is not installed", name)
			continue
		}
		f, err := os.Open(paths[0])
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		table, err := Load(f)
		if err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), "readelf", "--debug-dump=frames-interp", "--wide", paths[0]).Output()
		if len(out) == 0 { // it fails after its output where a debug file is missing
			t.Fatal(err)
		}
		if n := compareRows(t, table, out); n < 100 {
			t.Errorf("%s: only %d rows were compared", name, n)
		} else {
			t.Logf("%s: %d rows", name, n)
		}
	}
}

// compareRows compares rows of readelf's output, like
//
//	   LOC           CFA      rbx   rbp   ra
//	0000000000026000 rsp+8    u     u     c-8
//
// and returns their number.
func compareRows(t *testing.T, table *Table, out []byte) int {
	t.Helper()
	var columns []string
	function := false
	n, wrong := 0, 0
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		switch {
		case strings.Contains(lines.Text(), " FDE "):
			function = true
		case strings.Contains(lines.Text(), " CIE"), strings.HasSuffix(lines.Text(), "terminator"), len(f) == 0:
			function = function && len(f) == 0
		case f[0] == "LOC":
			columns = f[1:]
		case function && len(f) == len(columns)+1:
			addr, err := strconv.ParseUint(f[0], 16, 64)
			if err != nil {
				continue
			}
			n++
			want := make(map[string]string)
			for i, c := range columns {
				want[c] = f[i+1]
			}
			if got, ok := rowLike(table.calculate(addr), want); !ok {
				if wrong++; wrong < 10 {
					t.Errorf("%x: %v, readelf has %v", addr, got, want)
				}
			}
		}
	}
	return n
}

// rowLike formats a row as readelf does, and compares it.
func rowLike(r *row, want map[string]string) (map[string]string, bool) {
	names := registerNames()
	if r.last {
		return nil, want["ra"] == "u"
	}
	got := map[string]string{}
	if r.bad || r == none {
		return nil, false
	}
	got["CFA"] = "exp"
	if r.cfa.kind == ruleRegister {
		got["CFA"] = fmt.Sprintf("%s%+d", names[r.cfa.reg], r.cfa.offset)
	}
	for _, s := range r.saved {
		text := "exp"
		switch s.kind {
		case ruleSaved:
			text = fmt.Sprintf("c%+d", s.offset)
		case ruleValue:
			text = fmt.Sprintf("v%+d", s.offset)
		case ruleValueExpression:
			text = "vexp"
		case ruleUndefined:
			text = "u"
		case ruleRegister:
			text = names[s.reg]
		}
		got[names[s.reg]] = text
	}
	for name, is := range want {
		if g, ok := got[name]; ok && g != is || !ok && is != "u" && is != "s" {
			return got, false
		}
	}
	return got, true
}

// The kernel's own library has tables, which show this package's use of a file in memory.
func TestVDSO(t *testing.T) {
	b, err := elffile.VDSO()
	if err != nil {
		t.Fatal(err)
	}
	table, err := Load(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	e := table.sections[0].entries[0]
	if r := table.find(e.begin); r == none || r.bad || r.cfa.reg != regSP || r.cfa.offset != 8 {
		t.Errorf("the first function begins with %+v", r)
	}
	if r := table.find(1 << 40); r != none {
		t.Errorf("rules outside of the file: %+v", r)
	}
	if _, err := Load(bytes.NewReader(b[:100])); err == nil {
		t.Error("a truncated file is accepted")
	}
	if _, err := Load(strings.NewReader("#!/bin/sh\n")); err == nil || errors.Is(err, ErrNoTables) {
		t.Errorf("a script: error %v", err)
	}
}

// stackOf makes a stack with words at its begin.
func stackOf(pc, bp uint64, words ...uint64) *Stack {
	s := &Stack{Registers: Registers{regSP: 0x1000, regPC: pc, regBP: bp}}
	for _, w := range words {
		s.Memory = binary.LittleEndian.AppendUint64(s.Memory, w)
	}
	return s
}

// Code without tables is walked by frame pointers, up to the end of the copy.
func TestFramePointers(t *testing.T) {
	code := func(pc uint64) (*Table, uint64, bool) { return nil, pc, pc < 0x900 }
	var w Walker
	for name, c := range map[string]struct {
		stack *Stack
		want  []uint64
		whole bool
	}{
		"two callers":           {stackOf(0x100, 0x1008, 7, 0x1018, 0x201, 9, 0x301), []uint64{0x100, 0x200, 0x300}, false},
		"the end":               {stackOf(0x100, 0x1000, 0x1010, 0x201, 0, 0), []uint64{0x100, 0x200}, true},
		"not a frame pointer":   {stackOf(0x100, 0x77, 1, 2, 3), []uint64{0x100}, false},
		"below the stack":       {stackOf(0x100, 0x800, 1, 2, 3), []uint64{0x100}, false},
		"a loop":                {stackOf(0x100, 0x1000, 0x1000, 0x201), []uint64{0x100, 0x200}, false},
		"return to no code":     {stackOf(0x100, 0x1000, 0x1010, 0x999), []uint64{0x100}, false},
		"nothing is code":       {stackOf(0x999, 0x1000), nil, false},
		"an empty copy":         {stackOf(0x100, 0x1000), []uint64{0x100}, false},
		"at the end of numbers": {stackOf(0x100, ^uint64(7), 1), []uint64{0x100}, false},
	} {
		if got, whole := w.Walk(c.stack, code); !slices.Equal(got, c.want) || whole != c.whole {
			t.Errorf("%s: %x %v, want %x %v", name, got, whole, c.want, c.whole)
		}
	}
}

// A function without a table, in a file that has some, is left by the first address behind a
// call in a function with a table.
func TestCalls(t *testing.T) {
	file := make([]byte, 0x400)
	copy(file[0x1fb:], []byte{0xe8, 1, 2, 3, 4}) // a call that returns to 0x200
	table := &Table{rows: make(map[uint64]*row), work: maxWork, loads: []load{{0, 0x400, 0}}}
	for addr := uint64(0x180); addr < 0x280; addr++ {
		table.rows[addr] = &row{last: true}
	}
	table.open = func() (File, error) { return inMemory{bytes.NewReader(file)}, nil }
	code := func(pc uint64) (*Table, uint64, bool) { return table, pc, pc < 0x400 }
	var w Walker
	if got, whole := w.Walk(stackOf(0x100, 0, 0x999, 0x1f0, 0x300, 0x200), code); !slices.Equal(got, []uint64{0x100, 0x1ff}) || !whole {
		t.Errorf("%x, %v", got, whole)
	}
	if got, whole := w.Walk(stackOf(0x100, 0, 0x999, 0x1f0, 0x300), code); !slices.Equal(got, []uint64{0x100}) || whole {
		t.Errorf("without a call: %x, %v", got, whole)
	}
	for _, c := range []struct {
		code []byte
		want bool
	}{
		{[]byte{0xe8, 0, 0, 0, 0}, true}, {[]byte{0xff, 0xd0}, true}, {[]byte{0x41, 0xff, 0xd7}, true}, {[]byte{0xff, 0x15, 0, 0, 0, 0}, true},
		{[]byte{0xff, 0x50, 8}, true}, {[]byte{0xff, 0x14, 0xc5}, true}, {[]byte{0xff, 0x54, 0x24, 8}, true}, {[]byte{0xff, 0x90, 0, 1, 0, 0}, true},
		{[]byte{0xff, 0x94, 0x24, 0, 1, 0, 0}, true}, {[]byte{0xe9, 0, 0, 0, 0}, false}, {[]byte{0x48, 0x89, 0xd8}, false}, {[]byte{0xff, 0xe0}, false},
	} {
		var b [callBytes]byte
		copy(b[callBytes-len(c.code):], c.code)
		if endsWithCall(b) != c.want {
			t.Errorf("% x: want %v", c.code, c.want)
		}
	}
}

type inMemory struct{ *bytes.Reader }

func (inMemory) Close() error { return nil }

func TestJoin(t *testing.T) {
	for _, c := range []struct{ calls, pointers, want []uint64 }{
		{[]uint64{0x10, 0x20}, []uint64{0x10, 0x21, 0x31, 0x41}, []uint64{0x10, 0x20, 0x30, 0x40}},
		{[]uint64{0x10}, []uint64{0x10, 0x31}, []uint64{0x10, 0x30}},
		{[]uint64{0x10, 0x20}, []uint64{0x10, 0x99}, []uint64{0x10, 0x20}},
		{nil, []uint64{0x10}, []uint64{0x10}},
		{[]uint64{0x10}, nil, []uint64{0x10}},
	} {
		if got := Join(slices.Clone(c.calls), slices.Clone(c.pointers)); !slices.Equal(got, c.want) {
			t.Errorf("%x and %x: %x, want %x", c.calls, c.pointers, got, c.want)
		}
	}
}

// Damaged and malicious tables end a walk early. Their functions share one damaged row,
// and work on them is bounded for the whole file.
func TestBoundsOfTables(t *testing.T) {
	endless := bytes.Repeat([]byte{opRemember}, 100)                                             // without an end
	long := bytes.Repeat([]byte{opAdvance}, maxOperations+1)                                     // advance by 0
	unknown := []byte{0x3f}                                                                      // no instruction
	deep := slices.Concat([]byte{opCFAExpr, 40}, bytes.Repeat([]byte{exprLit0}, 40))             // operands
	jump := []byte{opCFAExpr, 3, 0x2f, 0xfd, 0xff}                                               // DW_OP_skip to itself
	cut := []byte{opDefCFA, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1} // a number over 64 bits
	for name, code := range map[string][]byte{"remember": endless, "long": long, "unknown": unknown, "number": cut, "recall": {opRecall}} {
		if r := run(code); r != damaged {
			t.Errorf("%s: %+v", name, r)
		}
	}
	for name, code := range map[string][]byte{"deep": deep, "jump": jump} {
		r := run(code)
		w := Walker{known: 1<<registers - 1, stack: &Stack{}, fuel: maxExpression}
		if v, ok := w.evaluate(r.cfa.expression, 0); ok {
			t.Errorf("%s: the expression is %x", name, v)
		}
	}
}

// run executes instructions for a function.
func run(code []byte) *row {
	c := &cie{codeAlign: 1, dataAlign: -8, returns: regPC, begin: cursor{rest: []byte{opDefCFA, regSP, 8, opOffset | regPC, 1}}}
	p := program{cie: c, until: 1, left: maxOperations}
	if !p.run(c.begin) {
		return damaged
	}
	p.start = p.now
	if !p.run(cursor{rest: code}) {
		return damaged
	}
	return p.row()
}

// FuzzLoad reads damaged files, and walks a stack by what they have.
func FuzzLoad(f *testing.F) {
	b, err := elffile.VDSO()
	if err != nil {
		f.Skip(err) // not on this architecture
	}
	stack := bytes.Repeat(binary.LittleEndian.AppendUint64(nil, 0x1a00), 64)
	f.Add(b, stack, uint64(0xa00), uint64(0x1010))
	f.Add(b[:len(b)/2], stack, uint64(0), uint64(0))
	f.Fuzz(func(t *testing.T, file, memory []byte, pc, bp uint64) {
		table, _ := Load(bytes.NewReader(file)) // nil if it is not understood
		walk(t, table, memory, pc, bp)
	})
}

// FuzzTable reads damaged sections, which the headers of a file do not protect.
func FuzzTable(f *testing.F) {
	b, err := elffile.VDSO()
	if err != nil {
		f.Skip(err)
	}
	whole, err := Load(bytes.NewReader(b))
	if err != nil {
		f.Fatal(err)
	}
	s := whole.sections[0]
	f.Add(s.data, true, []byte("stack"), s.entries[0].begin, uint64(0))
	f.Add(s.data, false, []byte("stack"), s.entries[0].begin, uint64(0))
	f.Fuzz(func(t *testing.T, data []byte, eh bool, memory []byte, pc, bp uint64) {
		table := &Table{rows: make(map[uint64]*row), work: maxWork, loads: []load{{0, 1 << 62, 0}}}
		table.add(&section{data: data, addr: 0x1000, eh: eh})
		for _, s := range table.sections {
			for _, e := range s.entries[:min(len(s.entries), 64)] {
				walk(t, table, memory, e.begin, bp)
				walk(t, table, memory, e.end-1, bp)
			}
		}
		walk(t, table, memory, pc, bp)
	})
}

func walk(t *testing.T, table *Table, memory []byte, pc, bp uint64) {
	var w Walker
	s := &Stack{Registers: Registers{regSP: 0x1000, regPC: pc, regBP: bp}, Memory: memory}
	calls, _ := w.Walk(s, func(pc uint64) (*Table, uint64, bool) { return table, pc, true })
	if len(calls) > maxFrames {
		t.Errorf("%d calls", len(calls))
	}
}
