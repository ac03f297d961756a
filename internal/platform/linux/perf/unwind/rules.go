package unwind

// Kinds of rules, which say where the value of a register in the caller is.
const (
	ruleNone = iota
	ruleUndefined
	ruleRegister        // in another register, plus offset
	ruleSaved           // at the frame's address plus offset
	ruleValue           // the frame's address plus offset
	ruleExpression      // at the address that the expression yields
	ruleValueExpression // the expression's value
)

type rule struct {
	kind       uint8
	reg        uint8
	offset     int64
	expression []byte
}

// row is the rules at one address.
type row struct {
	cfa     rule // the frame's address (canonical frame address)
	saved   []savedRule
	savesSP bool
	last    bool // the function has no caller
	signal  bool // it was called by the kernel for a signal
	bad     bool // the table is damaged, or needs more than this package can
}

type savedRule struct {
	reg uint8
	rule
}

// none is the row of a function without a table. It is compared by address.
var none = &row{}

// damaged is the row of a function whose table cannot be used.
var damaged = &row{bad: true}

// state is a row that instructions change.
type state struct {
	cfa  rule
	regs [registers]rule
}

// Instructions (DWARF 5, table 7.29). The first three have an operand in their low bits.
const (
	opAdvance   = 0x40
	opOffset    = 0x80
	opRestore   = 0xc0
	opHigh      = 0xc0
	opNop       = 0x00
	opSetLoc    = 0x01
	opAdvance1  = 0x02
	opAdvance2  = 0x03
	opAdvance4  = 0x04
	opOffsetX   = 0x05
	opRestoreX  = 0x06
	opUndefined = 0x07
	opSame      = 0x08
	opRegister  = 0x09
	opRemember  = 0x0a
	opRecall    = 0x0b
	opDefCFA    = 0x0c
	opCFAReg    = 0x0d
	opCFAOffset = 0x0e
	opCFAExpr   = 0x0f
	opExpr      = 0x10
	opOffsetSF  = 0x11
	opDefCFASF  = 0x12
	opCFAOffSF  = 0x13
	opValOffset = 0x14
	opValOffSF  = 0x15
	opValExpr   = 0x16
	opArgsSize  = 0x2e // GNU: the size of arguments on the stack
	opNegOffset = 0x2f // GNU, obsolete
)

const (
	maxRemembered = 16
	maxOperations = 1 << 16 // of one function
)

// program executes the instructions of a function up to an address.
type program struct {
	cie        *cie
	now, start state
	kept       []state
	at, until  uint64
	left       int // operations
}

// run executes instructions, and reports whether all of them are understood. It ends at
// the first one for an address above p.until.
func (p *program) run(in cursor) bool {
	for len(in.rest) > 0 && !in.bad {
		if p.left--; p.left < 0 {
			return false
		}
		op := in.u8()
		low := uint64(op &^ opHigh)
		switch op & opHigh {
		case opAdvance:
			if p.advance(low) {
				return true
			}
			continue
		case opOffset:
			p.set(low, rule{kind: ruleSaved, offset: in.factored(p.cie)})
			continue
		case opRestore:
			p.restore(low)
			continue
		}
		done, ok := p.execute(op, &in)
		if !ok {
			return false
		}
		if done {
			return true
		}
	}
	return !in.bad
}

// advance moves to a later address, and reports whether it is above the wanted one.
func (p *program) advance(units uint64) bool {
	p.at += units * p.cie.codeAlign
	return p.at > p.until
}

// set sets the rule of a register. Registers that hold no addresses are not tracked.
func (p *program) set(reg uint64, r rule) {
	if reg < registers {
		p.now.regs[reg] = r
	}
}

func (p *program) restore(reg uint64) {
	if reg < registers {
		p.now.regs[reg] = p.start.regs[reg]
	}
}

// execute executes an instruction without an operand in its code.
func (p *program) execute(op byte, in *cursor) (done, ok bool) {
	switch op {
	case opNop:
	case opSetLoc:
		p.at = in.pointer(p.cie.encoding)
		return p.at > p.until, !in.bad
	case opAdvance1:
		return p.advance(uint64(in.u8())), !in.bad
	case opAdvance2:
		return p.advance(uint64(in.u16())), !in.bad
	case opAdvance4:
		return p.advance(uint64(in.u32())), !in.bad
	case opOffsetX:
		p.set(in.uleb(), rule{kind: ruleSaved, offset: in.factored(p.cie)})
	case opOffsetSF:
		p.set(in.uleb(), rule{kind: ruleSaved, offset: in.sleb() * p.cie.dataAlign})
	case opNegOffset:
		p.set(in.uleb(), rule{kind: ruleSaved, offset: -in.factored(p.cie)})
	case opValOffset:
		p.set(in.uleb(), rule{kind: ruleValue, offset: in.factored(p.cie)})
	case opValOffSF:
		p.set(in.uleb(), rule{kind: ruleValue, offset: in.sleb() * p.cie.dataAlign})
	case opRestoreX:
		p.restore(in.uleb())
	case opUndefined:
		p.set(in.uleb(), rule{kind: ruleUndefined})
	case opSame:
		p.set(in.uleb(), rule{})
	case opRegister:
		reg, other := in.uleb(), in.uleb()
		if other >= registers {
			return false, false
		}
		p.set(reg, rule{kind: ruleRegister, reg: uint8(other)})
	case opExpr:
		p.set(in.uleb(), rule{kind: ruleExpression, expression: in.block()})
	case opValExpr:
		p.set(in.uleb(), rule{kind: ruleValueExpression, expression: in.block()})
	case opArgsSize:
		in.uleb()
	case opRemember:
		p.kept = append(p.kept, p.now)
		return false, len(p.kept) <= maxRemembered
	case opRecall:
		if len(p.kept) == 0 {
			return false, false
		}
		p.now = p.kept[len(p.kept)-1]
		p.kept = p.kept[:len(p.kept)-1]
	default:
		return false, p.defineCFA(op, in)
	}
	return false, !in.bad
}

// defineCFA executes the instructions for the frame's address.
func (p *program) defineCFA(op byte, in *cursor) bool {
	cfa := &p.now.cfa
	switch op {
	case opDefCFA, opDefCFASF:
		reg := in.uleb()
		*cfa = rule{kind: ruleRegister, reg: uint8(min(reg, registers))}
		if op == opDefCFA {
			cfa.offset = int64(in.uleb())
		} else {
			cfa.offset = in.sleb() * p.cie.dataAlign
		}
	case opCFAReg:
		cfa.reg = uint8(min(in.uleb(), registers))
	case opCFAOffset:
		cfa.offset = int64(in.uleb())
	case opCFAOffSF:
		cfa.offset = in.sleb() * p.cie.dataAlign
	case opCFAExpr:
		*cfa = rule{kind: ruleValueExpression, expression: in.block()}
	default:
		return false
	}
	return !in.bad && cfa.reg < registers
}

// row returns the rules of the state that the instructions have led to.
func (p *program) row() *row {
	if p.now.cfa.kind == ruleNone || p.cie.returns >= registers {
		return damaged
	}
	r := &row{cfa: p.now.cfa, signal: p.cie.signal}
	back := p.now.regs[p.cie.returns]
	switch back.kind {
	case ruleUndefined:
		return &row{last: true}
	case ruleNone: // x86-64 has no register for the return address
		return damaged
	}
	for reg, rule := range p.now.regs {
		if rule.kind == ruleNone || reg == int(p.cie.returns) || reg == regPC {
			continue
		}
		r.saved = append(r.saved, savedRule{uint8(reg), rule})
		r.savesSP = r.savesSP || reg == regSP
	}
	r.saved = append(r.saved, savedRule{regPC, back})
	return r
}
