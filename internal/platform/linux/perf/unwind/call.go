package unwind

import "holdfast/internal/platform/linux/perf/elffile"

// follows reports whether a position in the file is in a function with usable rules, and
// directly behind a call instruction. It reads the file for each position once.
func (t *Table) follows(offset uint64) bool {
	if is, ok := t.calls[offset]; ok {
		return is
	}
	r := t.find(offset - 1)
	if r == none || r.bad || t.open == nil || len(t.calls) >= maxRows || offset < callBytes {
		return false
	}
	open := t.open
	is, inTime := elffile.Bounded(loadLimit, func() bool {
		f, err := open()
		if err != nil {
			return false
		}
		defer f.Close()
		var b [callBytes]byte
		n, _ := f.ReadAt(b[:], int64(offset-callBytes))
		return n == len(b) && endsWithCall(b)
	})
	if !inTime {
		t.open = nil
	}
	if t.calls == nil {
		t.calls = make(map[uint64]bool)
	}
	t.calls[offset] = is
	return is
}

// callBytes is the length of the longest call instruction without prefixes.
const callBytes = 7

// endsWithCall reports whether bytes end with a call (Intel's manual, volume 2, CALL): E8,
// or FF with the extension 2 and the operands that compilers use.
func endsWithCall(b [callBytes]byte) bool {
	at := func(n int) byte { return b[callBytes-n] }
	switch {
	case at(5) == 0xe8: // relative
	case at(2) == 0xff && at(1)&0xf8 == 0xd0: // a register
	case at(3) == 0xff && (at(2)&0xf8 == 0x50 || at(2) == 0x14): // memory, with a small offset or an index
	case at(4) == 0xff && at(3) == 0x54:
	case at(6) == 0xff && (at(5) == 0x15 || at(5)&0xf8 == 0x90): // relative memory, or a large offset
	case at(7) == 0xff && at(6) == 0x94:
	default:
		return false
	}
	return true
}
