package unwind

// Operations of expressions (DWARF 5, section 2.5) that tables use: those of the linker
// for its call stubs, of libc for signals, and of compilers for realigned stacks. Jumps
// and calls are not among them, so that an expression always ends.
const (
	exprAddr    = 0x03
	exprDeref   = 0x06
	exprConst1u = 0x08
	exprConst1s = 0x09
	exprConst2u = 0x0a
	exprConst2s = 0x0b
	exprConst4u = 0x0c
	exprConst4s = 0x0d
	exprConst8u = 0x0e
	exprConst8s = 0x0f
	exprConstu  = 0x10
	exprConsts  = 0x11
	exprDup     = 0x12
	exprDrop    = 0x13
	exprOver    = 0x14
	exprPick    = 0x15
	exprSwap    = 0x16
	exprRot     = 0x17
	exprAnd     = 0x1a
	exprMinus   = 0x1c
	exprMul     = 0x1e
	exprNeg     = 0x1f
	exprNot     = 0x20
	exprOr      = 0x21
	exprPlus    = 0x22
	exprPlusU   = 0x23
	exprShl     = 0x24
	exprShr     = 0x25
	exprShra    = 0x26
	exprXor     = 0x27
	exprEq      = 0x29
	exprGe      = 0x2a
	exprGt      = 0x2b
	exprLe      = 0x2c
	exprLt      = 0x2d
	exprNe      = 0x2e
	exprLit0    = 0x30
	exprReg0    = 0x50
	exprBreg0   = 0x70
	exprBregEnd = 0x90
	exprBregX   = 0x92
	exprNop     = 0x96
)

// operands is the stack of an expression.
type operands struct {
	values [16]uint64
	n      int
	bad    bool
}

func (o *operands) push(v uint64) {
	if o.n == len(o.values) {
		o.bad = true
		return
	}
	o.values[o.n] = v
	o.n++
}

func (o *operands) pop() uint64 {
	if o.n == 0 {
		o.bad = true
		return 0
	}
	o.n--
	return o.values[o.n]
}

func (o *operands) pick(depth int) uint64 {
	if depth >= o.n {
		o.bad = true
		return 0
	}
	return o.values[o.n-1-depth]
}

// evaluate returns the value of an expression, which begins with the frame's address on
// its stack. It reports false if it cannot be calculated.
func (w *Walker) evaluate(expression []byte, cfa uint64) (uint64, bool) {
	in := cursor{rest: expression}
	var o operands
	o.push(cfa)
	for len(in.rest) > 0 {
		if w.fuel--; w.fuel < 0 {
			return 0, false
		}
		op := in.u8()
		switch {
		case op == exprDeref:
			v, ok := w.word(o.pop())
			o.bad = o.bad || !ok
			o.push(v)
		case op >= exprBreg0 && op < exprBregEnd:
			o.push(w.based(uint64(op-exprBreg0), in.sleb(), &o))
		case op == exprBregX:
			reg := in.uleb()
			o.push(w.based(reg, in.sleb(), &o))
		case !constant(op, &in, &o) && !arrange(op, &in, &o) && !calculate(op, &in, &o):
			return 0, false
		}
		if o.bad || in.bad {
			return 0, false
		}
	}
	v := o.pop()
	return v, !o.bad
}

// based is the value of a register plus an offset.
func (w *Walker) based(reg uint64, offset int64, o *operands) uint64 {
	if reg >= registers || !w.knows(int(reg)) {
		o.bad = true
		return 0
	}
	return w.regs[reg] + uint64(offset)
}

// constant executes an operation that pushes a constant, and reports whether it is one.
func constant(op byte, in *cursor, o *operands) bool {
	switch {
	case op >= exprLit0 && op < exprReg0:
		o.push(uint64(op - exprLit0))
		return true
	}
	switch op {
	case exprConst1u:
		o.push(uint64(in.u8()))
	case exprConst1s:
		o.push(uint64(int8(in.u8())))
	case exprConst2u:
		o.push(uint64(in.u16()))
	case exprConst2s:
		o.push(uint64(int16(in.u16())))
	case exprConst4u:
		o.push(uint64(in.u32()))
	case exprConst4s:
		o.push(uint64(int32(in.u32())))
	case exprConst8u, exprConst8s, exprAddr:
		o.push(in.u64())
	case exprConstu:
		o.push(in.uleb())
	case exprConsts:
		o.push(uint64(in.sleb()))
	default:
		return false
	}
	return true
}

// arrange executes an operation that moves values, and reports whether it is one.
func arrange(op byte, in *cursor, o *operands) bool {
	switch op {
	case exprDup:
		o.push(o.pick(0))
	case exprDrop:
		o.pop()
	case exprOver:
		o.push(o.pick(1))
	case exprPick:
		o.push(o.pick(int(in.u8())))
	case exprSwap:
		a, b := o.pop(), o.pop()
		o.push(a)
		o.push(b)
	case exprRot:
		a, b, c := o.pop(), o.pop(), o.pop()
		o.push(a)
		o.push(c)
		o.push(b)
	case exprNop:
	default:
		return false
	}
	return true
}

// calculate executes an operation with one or two operands, and reports whether it is one.
func calculate(op byte, in *cursor, o *operands) bool {
	switch op {
	case exprNeg:
		o.push(-o.pop())
		return true
	case exprNot:
		o.push(^o.pop())
		return true
	case exprPlusU:
		o.push(o.pop() + in.uleb())
		return true
	}
	b, a := o.pop(), o.pop()
	switch op {
	case exprAnd:
		o.push(a & b)
	case exprOr:
		o.push(a | b)
	case exprXor:
		o.push(a ^ b)
	case exprPlus:
		o.push(a + b)
	case exprMinus:
		o.push(a - b)
	case exprMul:
		o.push(a * b)
	case exprShl:
		o.push(a << b)
	case exprShr:
		o.push(a >> b)
	case exprShra:
		o.push(uint64(int64(a) >> b))
	default:
		v, ok := compare(op, int64(a), int64(b))
		o.push(v)
		return ok
	}
	return true
}

// compare executes a comparison, and reports whether it is one.
func compare(op byte, a, b int64) (uint64, bool) {
	var is bool
	switch op {
	case exprEq:
		is = a == b
	case exprGe:
		is = a >= b
	case exprGt:
		is = a > b
	case exprLe:
		is = a <= b
	case exprLt:
		is = a < b
	case exprNe:
		is = a != b
	default:
		return 0, false
	}
	if is {
		return 1, true
	}
	return 0, true
}
