package unwind

import (
	"bytes"
	"encoding/binary"
)

// cursor reads values. Past the end it returns zeros and is bad.
type cursor struct {
	rest []byte
	addr uint64 // of rest in the file's own terms
	bad  bool
}

// take returns the next n bytes, or nil.
func (c *cursor) take(n uint64) []byte {
	if n > uint64(len(c.rest)) {
		c.bad, c.rest = true, nil
		return nil
	}
	b := c.rest[:n]
	c.rest = c.rest[n:]
	c.addr += n
	return b
}

func (c *cursor) u8() byte {
	if b := c.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (c *cursor) u16() uint16 {
	if b := c.take(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

func (c *cursor) u32() uint32 {
	if b := c.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (c *cursor) u64() uint64 {
	if b := c.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// uleb reads an unsigned LEB128 number. Longer ones than 64 bits are bad.
func (c *cursor) uleb() uint64 {
	var v uint64
	for shift := 0; shift < 70; shift += 7 {
		b := c.u8()
		v |= uint64(b&0x7f) << shift
		if b&0x80 == 0 {
			return v
		}
	}
	c.bad = true
	return 0
}

// sleb reads a signed LEB128 number.
func (c *cursor) sleb() int64 {
	var v int64
	for shift := 0; shift < 70; shift += 7 {
		b := c.u8()
		v |= int64(b&0x7f) << shift
		if b&0x80 == 0 {
			if b&0x40 != 0 && shift+7 < 64 {
				v |= -1 << (shift + 7)
			}
			return v
		}
	}
	c.bad = true
	return 0
}

// factored reads an offset in units of the data alignment.
func (c *cursor) factored(of *cie) int64 { return int64(c.uleb()) * of.dataAlign }

// block reads bytes with their number before them.
func (c *cursor) block() []byte { return c.take(c.uleb()) }

// text reads a string of at most max bytes and its zero.
func (c *cursor) text(max int) []byte {
	n := bytes.IndexByte(c.rest[:min(max+1, len(c.rest))], 0)
	if n < 0 {
		c.bad = true
		return nil
	}
	b := c.take(uint64(n))
	c.take(1)
	return b
}

// Encodings of addresses (Linux Standard Base Core, DWARF Exception Header Encoding).
const (
	encAbsolute = 0x00
	encOmit     = 0xff
	encFormat   = 0x0f
	encSigned   = 0x08
	encRelative = 0x70
	encFromHere = 0x10
)

// number reads a number of an encoding's format.
func (c *cursor) number(encoding byte) uint64 {
	switch encoding & encFormat {
	case encAbsolute, 4, encSigned | 4:
		return c.u64()
	case 1:
		return c.uleb()
	case 2:
		return uint64(c.u16())
	case 3:
		return uint64(c.u32())
	case encSigned | 1:
		return uint64(c.sleb())
	case encSigned | 2:
		return uint64(int16(c.u16()))
	case encSigned | 3:
		return uint64(int32(c.u32()))
	}
	c.bad = true
	return 0
}

// pointer reads the address of code. Those relative to other sections do not occur on
// x86-64 and are bad.
func (c *cursor) pointer(encoding byte) uint64 {
	from := c.addr
	v := c.number(encoding)
	switch encoding & encRelative {
	case encAbsolute:
		return v
	case encFromHere:
		return from + v
	}
	c.bad = true
	return 0
}
