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
	isInteger
	isFloat
	isSymbol  // a variable, or a name that is known later: a label or function
	isAddress // [base + offset]
	isVector
	isSink // _
)

// An operand as it was written.
type operand struct {
	what what
	name string
	reg  register
	v    *variable // that name is; nil if it is none
	bits uint64    // of a number; an address' and a symbol's offset
	not  bool      // !p
	base *operand  // of an address; nil for an absolute one
	pair *operand  // the second of p|q
	vec  []operand
}

// A register is a slot with a type.
type register struct {
	slot int32
	typ  typ
}

// operand parses one.
func (p *parser) operand(f *builder) (operand, error) {
	o, err := p.simple(f)
	if err != nil || !p.accept("|") {
		return o, err
	}
	second, err := p.simple(f)
	o.pair = &second
	return o, err
}

func (p *parser) simple(f *builder) (operand, error) {
	t := p.peek()
	switch {
	case p.accept("{"):
		return p.vector(f)
	case p.accept("["):
		return p.address(f)
	case p.accept("!"):
		o, err := p.simple(f)
		o.not = !o.not
		return o, err
	case t.is("-"), t.isNumber():
		return p.number()
	case p.accept("_"):
		return operand{what: isSink}, nil
	case t.isWord():
		return p.name(f)
	}
	return operand{}, errorf(t.line, "unexpected %q where an operand belongs", t.text)
}

// name is a register, or a symbol with perhaps something added.
func (p *parser) name(f *builder) (operand, error) {
	t := p.next()
	if r, ok := f.register(t.text); ok {
		return operand{what: isRegister, name: t.text, reg: r}, nil
	}
	if strings.HasPrefix(t.text, "%") {
		return operand{}, errorf(t.line, "there is no register %s", t.text)
	}
	o := operand{what: isSymbol, name: t.text, v: f.variable(t.text)}
	plus, err := p.plus()
	o.bits = plus
	return o, err
}

// plus is what is added to a name, if anything is.
func (p *parser) plus() (uint64, error) {
	minus := false
	switch {
	case p.accept("+"):
	case p.peek().is("-"):
		p.next()
		minus = true
	default:
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

func (p *parser) address(f *builder) (operand, error) {
	a := operand{what: isAddress}
	base, err := p.simple(f)
	if err != nil {
		return a, err
	}
	switch base.what {
	case isInteger:
		a.bits = base.bits
	case isRegister:
		a.base = &base
		if a.bits, err = p.plus(); err != nil {
			return a, err
		}
	case isSymbol:
		a.base, a.bits = &base, base.bits
	default:
		return a, errorf(p.line(), "this is no address")
	}
	return a, p.expect("]")
}

func (p *parser) vector(f *builder) (operand, error) {
	v := operand{what: isVector}
	for {
		o, err := p.simple(f)
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
}

// number is a literal, with a minus perhaps.
func (p *parser) number() (operand, error) {
	minus := p.accept("-")
	t := p.next()
	o, err := literal(t)
	if minus && err == nil {
		if o.what == isFloat {
			o.bits ^= 1 << 63
		} else {
			o.bits = -o.bits
		}
	}
	return o, err
}

// literal reads a number. A float's bits are those of a double, but for 0f,
// which gives the bits of a single: that is widened, which loses nothing.
func literal(t token) (operand, error) {
	s := t.text
	bad := errorf(t.line, "%q is no number", s)
	switch {
	case len(s) == 10 && (s[:2] == "0f" || s[:2] == "0F"):
		v, err := strconv.ParseUint(s[2:], 16, 32)
		if err != nil {
			return operand{}, bad
		}
		return operand{what: isFloat, bits: widen(uint32(v))}, nil
	case len(s) == 18 && (s[:2] == "0d" || s[:2] == "0D"):
		v, err := strconv.ParseUint(s[2:], 16, 64)
		if err != nil {
			return operand{}, bad
		}
		return operand{what: isFloat, bits: v}, nil
	}
	if v, err := strconv.ParseUint(strings.TrimSuffix(s, "U"), 0, 64); err == nil && !strings.Contains(s, "_") {
		return operand{what: isInteger, bits: v}, nil
	}
	if v, err := strconv.ParseFloat(s, 64); err == nil && strings.ContainsAny(s, ".eE") && !strings.ContainsAny(s, "xX_") {
		return operand{what: isFloat, bits: math.Float64bits(v)}, nil
	}
	return operand{}, bad
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
