package ptx

import (
	"math"
	"strconv"
	"strings"
)

// An operandKind says what an operand is.
type operandKind uint8

const (
	isRegister operandKind = iota + 1
	isSpecial
	isInteger
	isFloat
	isSymbol  // a variable, or a name that means nothing yet: a label or function
	isAddress // [base + offset]
	isVector
	isSink // _
)

// An operand as it was written.
type operand struct {
	what    operandKind
	name    string
	reg     register
	special *special
	v       *variable // that name is; nil if it is none
	bits    uint64    // of a number; an address' and a symbol's offset
	not     bool      // !p
	base    *operand  // of an address; nil for an absolute one
	pair    *operand  // the second of p|q
	vec     []operand
}

// A register is a slot with a type.
type register struct {
	slot int32
	typ  typ
}

// operand parses one. Vectors and addresses are not nested.
func (p *parser) operand(b *builder) operand {
	switch {
	case p.accept("{"):
		return p.vector(b)
	case p.accept("["):
		return p.address(b)
	}
	o := p.scalar(b)
	if !p.accept("|") {
		return o
	}
	second := p.scalar(b)
	o.pair = &second
	return o
}

// scalar parses an operand that is one value.
func (p *parser) scalar(b *builder) operand {
	t := p.peek()
	switch {
	case p.accept("!"):
		o := p.name(b)
		o.not = true
		return o
	case t.is("-"), t.isNumber():
		return p.number()
	case p.accept("_"):
		return operand{what: isSink}
	case t.isWord():
		return p.name(b)
	}
	panic(errorf(t.line, "unexpected %s where an operand belongs", t))
}

// name is a register, or a symbol with perhaps something added.
func (p *parser) name(b *builder) operand {
	t := p.next()
	if r, ok := b.register(t.text); ok {
		return operand{what: isRegister, name: t.text, reg: r}
	}
	if s, ok := specials[t.text]; ok {
		return operand{what: isSpecial, name: t.text, special: s, reg: register{typ: s.typ}}
	}
	if t.is("WARP_SZ") {
		return operand{what: isInteger, bits: warpSize}
	}
	if strings.HasPrefix(t.text, "%") {
		panic(errorf(t.line, "there is no register %s", t.text))
	}
	if !t.isName() {
		panic(errorf(t.line, "unexpected %s where an operand belongs", t))
	}
	plus := p.plus()
	return operand{what: isSymbol, name: t.text, v: b.variable(t.text), bits: plus}
}

// plus is what is added to a name, if anything is.
func (p *parser) plus() uint64 {
	minus := p.accept("-")
	if !minus && !p.accept("+") {
		return 0
	}
	o := p.number()
	failIf(o.what != isInteger, p.line(), "only a whole number can be added to an address")
	if minus {
		return -o.bits
	}
	return o.bits
}

// address parses what is behind a bracket.
func (p *parser) address(b *builder) operand {
	a := operand{what: isAddress}
	base := p.scalar(b)
	switch {
	case base.not:
		panic(errorf(p.line(), "this is no address"))
	case base.what == isInteger:
		a.bits = base.bits
	case base.what == isRegister:
		a.base = &base
		a.bits = p.plus()
	case base.what == isSymbol:
		a.base, a.bits = &base, base.bits
	default:
		panic(errorf(p.line(), "this is no address"))
	}
	p.expect("]")
	return a
}

// maxVector is the most values that one operand may be.
const maxVector = 8

// vector parses what is behind a brace.
func (p *parser) vector(b *builder) operand {
	v := operand{what: isVector}
	for len(v.vec) < maxVector {
		o := p.scalar(b)
		v.vec = append(v.vec, o)
		if p.accept("}") {
			return v
		}
		p.expect(",")
	}
	panic(errorf(p.line(), "more than %d values", maxVector))
}

// number takes a literal, with a minus perhaps.
func (p *parser) number() operand {
	minus := p.accept("-")
	o := literal(p.next())
	if minus && o.what == isFloat {
		o.bits ^= 1 << 63
	} else if minus {
		o.bits = -o.bits
	}
	return o
}

// literal reads a number. A float's bits are those of a double, but for 0f,
// which gives the bits of a single: that is widened, which loses nothing.
func literal(t token) operand {
	s := t.text
	if bits, width, ok := exactFloat(s); ok {
		if width == 32 {
			bits = widen(uint32(bits))
		}
		return operand{what: isFloat, bits: bits}
	}
	if v, err := strconv.ParseUint(strings.TrimSuffix(s, "U"), 0, 64); err == nil && !strings.ContainsAny(s, "_oO") {
		return operand{what: isInteger, bits: v}
	}
	if v, err := strconv.ParseFloat(s, 64); err == nil && strings.ContainsAny(s, ".eE") && !strings.ContainsAny(s, "xX_") {
		return operand{what: isFloat, bits: math.Float64bits(v)}
	}
	panic(errorf(t.line, "%s is no number", t))
}

// exactFloat reads a float that is written as its bits: 0f and eight digits, or 0d
// and sixteen.
func exactFloat(s string) (bits uint64, width int, ok bool) {
	switch {
	case len(s) == 10 && (s[:2] == "0f" || s[:2] == "0F"):
		width = 32
	case len(s) == 18 && (s[:2] == "0d" || s[:2] == "0D"):
		width = 64
	default:
		return 0, 0, false
	}
	bits, err := strconv.ParseUint(s[2:], 16, 64)
	return bits, width, err == nil
}

// widen returns the double that is equal to a single, NaN payloads included.
func widen(v uint32) uint64 {
	if v&0x7f800000 == 0x7f800000 && v&0x007fffff != 0 {
		return uint64(v>>31)<<63 | 0x7ff<<52 | uint64(v&0x007fffff)<<29
	}
	return math.Float64bits(float64(math.Float32frombits(v)))
}

// narrow returns the single that is nearest to a double, NaN payloads included.
func narrow(v uint64) uint32 {
	if v&(0x7ff<<52) == 0x7ff<<52 && v<<12 != 0 {
		return uint32(v>>63)<<31 | 0x7f800000 | uint32(v>>29)&0x007fffff
	}
	return math.Float32bits(float32(math.Float64frombits(v)))
}

// as returns a literal's bits as a type wants them.
func (o operand) as(t typ, line int) uint64 {
	switch {
	case o.what == isInteger && t.kind != float && t.size <= 8:
		if o.bits > t.mask() && int64(o.bits) < -1<<(8*t.size-1) || o.bits > t.mask() && int64(o.bits) > 0 {
			panic(errorf(line, "%d does not fit .%s", int64(o.bits), t))
		}
		return o.bits & t.mask()
	case o.what == isFloat && t.size == 8 && t.kind != unsigned && t.kind != signed:
		return o.bits
	case o.what == isFloat && t.size == 4 && t.kind != unsigned && t.kind != signed:
		return uint64(narrow(o.bits))
	}
	panic(errorf(line, "this number does not fit .%s", t))
}
