package ptx

import (
	"strconv"
	"strings"
)

// A registerRange is %name<count>, which get slots as they are used.
type registerRange struct {
	prefix string
	count  int
	typ    typ
}

// registers takes a .reg declaration.
func (b *builder) registers() {
	p := b.p
	t := p.next()
	typ, ok := typeNames[strings.TrimPrefix(t.text, ".")]
	if t.is(".f16x2") { // the one pair that registers may be of
		typ, ok = tf16x2.plain(), true
	}
	if !ok || !strings.HasPrefix(t.text, ".") {
		panic(errorf(t.line, "%s is no type of a register that is supported", t))
	}
	p.list(func() { b.declareRegister(typ) })
}

// declareRegister takes one register's name, or that of several.
func (b *builder) declareRegister(typ typ) {
	p, s := b.p, b.scope
	line := p.line()
	name := p.word()
	if !p.accept("<") {
		_, twice := s.registers[name]
		failIf(twice, line, "%s is declared twice", name)
		slot := b.newSlot()
		s.registers[name] = register{slot, typ}
		return
	}
	count := p.integer(1 << 31)
	_, twice := s.ranges[name]
	failIf(twice, line, "%s is declared twice", name)
	s.ranges[name] = registerRange{name, count, typ}
	p.expect(">")
}

// register finds one by its name, in the innermost scope that has it.
func (b *builder) register(name string) (r register, ok bool) {
	for s := b.scope; s != nil; s = s.outer {
		if r, ok := s.registers[name]; ok {
			return r, true
		}
		if rr, ok := s.rangeOf(name); ok {
			slot := b.newSlot()
			s.registers[name] = register{slot, rr.typ}
			return s.registers[name], true
		}
	}
	return r, false
}

// rangeOf finds the range that a register belongs to.
func (s *scope) rangeOf(name string) (rr registerRange, ok bool) {
	const digits = 10 // no number has more
	for n := len(name); n > max(0, len(name)-digits) && isDigit(name[n-1]); n-- {
		if rr, ok = s.ranges[name[:n-1]]; ok && rr.has(name) {
			return rr, true
		}
	}
	return rr, false
}

func (r registerRange) has(name string) bool {
	digits, ok := strings.CutPrefix(name, r.prefix)
	if !ok || digits == "" || !isDigit(digits[0]) || len(digits) > 1 && digits[0] == '0' {
		return false
	}
	n, err := strconv.Atoi(digits)
	return err == nil && n < r.count
}

// newSlot makes one more register.
func (b *builder) newSlot() int32 {
	failIf(b.f.slots == maxSlots, b.p.line(), "more than %d registers", maxSlots)
	b.f.slots++
	return b.f.slots - 1
}

// presetSlot returns a register that holds a number, or an address.
func (b *builder) presetSlot(value uint64, v *variable) int32 {
	key := preset{value: value, v: v}
	if s, ok := b.presets[key]; ok {
		return s
	}
	s := b.newSlot()
	b.presets[key] = s
	b.f.preset = append(b.f.preset, preset{s, value, v})
	return s
}

// specialSlot returns a register that holds a special one, of those that stay the same
// while a thread runs.
func (b *builder) specialSlot(which *special) int32 {
	if s, ok := b.special[which]; ok {
		return s
	}
	b.f.reserves = b.f.reserves || which.reserves
	s := b.newSlot()
	b.special[which] = s
	b.f.special, b.f.which = append(b.f.special, s), append(b.f.which, which)
	return s
}
