package ptx

import (
	"math"
	"strconv"
	"strings"
)

// what an operand is.
type what uint8

const (
	isRegister what = iota + 1
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
	what    what
	name    string
	reg     register
	special special
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
func (p *parser) operand(b *builder) (operand, error) {
	switch {
	case p.accept("{"):
		return p.vector(b)
	case p.accept("["):
		return p.address(b)
	}
	o, err := p.scalar(b)
	if err != nil || !p.accept("|") {
		return o, err
	}
	second, err := p.scalar(b)
	o.pair = &second
	return o, err
}

// scalar parses an operand that is one value.
func (p *parser) scalar(b *builder) (operand, error) {
	t := p.peek()
	switch {
	case p.accept("!"):
		o, err := p.name(b)
		o.not = true
		return o, err
	case t.is("-"), t.isNumber():
		return p.number()
	case p.accept("_"):
		return operand{what: isSink}, nil
	case t.isWord():
		return p.name(b)
	}
	return operand{}, errorf(t.line, "unexpected %s where an operand belongs", t)
}

// name is a register, or a symbol with perhaps something added.
func (p *parser) name(b *builder) (operand, error) {
	t := p.next()
	if r, ok, err := b.register(t.text); ok || err != nil {
		return operand{what: isRegister, name: t.text, reg: r}, err
	}
	if s, ok := specials[t.text]; ok {
		return operand{what: isSpecial, name: t.text, special: s.which, reg: register{typ: s.typ}}, nil
	}
	if t.is("WARP_SZ") {
		return operand{what: isInteger, bits: warpSize}, nil
	}
	if strings.HasPrefix(t.text, "%") {
		return operand{}, errorf(t.line, "there is no register %s", t.text)
	}
	if !t.isName() {
		return operand{}, errorf(t.line, "unexpected %s where an operand belongs", t)
	}
	plus, err := p.plus()
	return operand{what: isSymbol, name: t.text, v: b.variable(t.text), bits: plus}, err
}

// plus is what is added to a name, if anything is.
func (p *parser) plus() (uint64, error) {
	minus := p.accept("-")
	if !minus && !p.accept("+") {
		return 0, nil
	}
	o, err := p.number()
	if err == nil && o.what != isInteger {
		err = errorf(p.line(), "only a whole number can be added to an address")
	}
	if minus {
		return -o.bits, err
	}
	return o.bits, err
}

// address parses what is behind a bracket.
func (p *parser) address(b *builder) (operand, error) {
	a := operand{what: isAddress}
	base, err := p.scalar(b)
	if err != nil {
		return a, err
	}
	switch {
	case base.not:
		return a, errorf(p.line(), "this is no address")
	case base.what == isInteger:
		a.bits = base.bits
	case base.what == isRegister:
		a.base = &base
		if a.bits, err = p.plus(); err != nil {
			return a, err
		}
	case base.what == isSymbol:
		a.base, a.bits = &base, base.bits
	default:
		return a, errorf(p.line(), "this is no address")
	}
	return a, p.expect("]")
}

// maxVector is the most values that one operand may be.
const maxVector = 8

// vector parses what is behind a brace.
func (p *parser) vector(b *builder) (operand, error) {
	v := operand{what: isVector}
	for len(v.vec) < maxVector {
		o, err := p.scalar(b)
		if err != nil {
			return v, err
		}
		v.vec = append(v.vec, o)
		if p.accept("}") {
			return v, nil
		}
		if err := p.expect(","); err != nil {
			return v, err
		}
	}
	return v, errorf(p.line(), "more than %d values", maxVector)
}

// number is a literal, with a minus perhaps.
func (p *parser) number() (operand, error) {
	minus := p.accept("-")
	o, err := literal(p.next())
	if minus && o.what == isFloat {
		o.bits ^= 1 << 63
	} else if minus {
		o.bits = -o.bits
	}
	return o, err
}

// literal reads a number. A float's bits are those of a double, but for 0f,
// which gives the bits of a single: that is widened, which loses nothing.
func literal(t token) (operand, error) {
	s := t.text
	if bits, width, ok := exactFloat(s); ok {
		if width == 32 {
			bits = widen(uint32(bits))
		}
		return operand{what: isFloat, bits: bits}, nil
	}
	if v, err := strconv.ParseUint(strings.TrimSuffix(s, "U"), 0, 64); err == nil && !strings.ContainsAny(s, "_oO") {
		return operand{what: isInteger, bits: v}, nil
	}
	if v, err := strconv.ParseFloat(s, 64); err == nil && strings.ContainsAny(s, ".eE") && !strings.ContainsAny(s, "xX_") {
		return operand{what: isFloat, bits: math.Float64bits(v)}, nil
	}
	return operand{}, errorf(t.line, "%s is no number", t)
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

// widen gives the double that is equal to a single, NaN payloads included.
func widen(v uint32) uint64 {
	if v&0x7f800000 == 0x7f800000 && v&0x007fffff != 0 {
		return uint64(v>>31)<<63 | 0x7ff<<52 | uint64(v&0x007fffff)<<29
	}
	return math.Float64bits(float64(math.Float32frombits(v)))
}

// narrow is the way back.
func narrow(v uint64) uint32 {
	if v&(0x7ff<<52) == 0x7ff<<52 && v<<12 != 0 {
		return uint32(v>>63)<<31 | 0x7f800000 | uint32(v>>29)&0x007fffff
	}
	return math.Float32bits(float32(math.Float64frombits(v)))
}

// as gives a literal's bits as a type wants them.
func (o operand) as(t typ, line int) (uint64, error) {
	switch {
	case o.what == isInteger && t.kind != float && t.size <= 8:
		if o.bits > t.mask() && int64(o.bits) < -1<<(8*t.size-1) || o.bits > t.mask() && int64(o.bits) > 0 {
			return 0, errorf(line, "%d does not fit .%s", int64(o.bits), t)
		}
		return o.bits & t.mask(), nil
	case o.what == isFloat && t.size == 8 && t.kind != unsigned && t.kind != signed:
		return o.bits, nil
	case o.what == isFloat && t.size == 4 && t.kind != unsigned && t.kind != signed:
		return uint64(narrow(o.bits)), nil
	}
	return 0, errorf(line, "this number does not fit .%s", t)
}
