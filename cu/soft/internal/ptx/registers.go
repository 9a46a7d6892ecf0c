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
func (b *builder) registers() error {
	p := b.p
	t := p.next()
	typ, ok := typeNames[strings.TrimPrefix(t.text, ".")]
	if t.is(".f16x2") { // the one pair that registers may be of
		typ, ok = tf16x2.plain(), true
	}
	if !ok || !strings.HasPrefix(t.text, ".") {
		return errorf(t.line, "%s is no type of a register that is supported", t)
	}
	for {
		if err := b.declareRegister(typ); err != nil {
			return err
		}
		if !p.accept(",") {
			return p.expect(";")
		}
	}
}

// declareRegister takes one register's name, or that of several.
func (b *builder) declareRegister(typ typ) error {
	p, s := b.p, b.scope
	line := p.line()
	name, err := p.word()
	if err != nil {
		return err
	}
	if !p.accept("<") {
		if _, twice := s.registers[name]; twice {
			return errorf(line, "%s is declared twice", name)
		}
		slot, err := b.newSlot()
		s.registers[name] = register{slot, typ}
		return err
	}
	count, err := p.integer(1 << 31)
	if err != nil {
		return err
	}
	if _, twice := s.ranges[name]; twice {
		return errorf(line, "%s is declared twice", name)
	}
	s.ranges[name] = registerRange{name, count, typ}
	return p.expect(">")
}

// register finds one by its name, in the innermost scope that has it.
func (b *builder) register(name string) (r register, ok bool, err error) {
	for s := b.scope; s != nil; s = s.outer {
		if r, ok := s.registers[name]; ok {
			return r, true, nil
		}
		if rr, ok := s.rangeOf(name); ok {
			slot, err := b.newSlot()
			s.registers[name] = register{slot, rr.typ}
			return s.registers[name], true, err
		}
	}
	return r, false, nil
}

// rangeOf finds the range that a register is of.
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
func (b *builder) newSlot() (int32, error) {
	if b.f.slots == maxSlots {
		return 0, errorf(b.p.line(), "more than %d registers", maxSlots)
	}
	b.f.slots++
	return b.f.slots - 1, nil
}

// presetSlot is a register that holds a number, or an address.
func (b *builder) presetSlot(value uint64, v *variable) (int32, error) {
	key := preset{value: value, v: v}
	if s, ok := b.presets[key]; ok {
		return s, nil
	}
	s, err := b.newSlot()
	b.presets[key] = s
	b.f.preset = append(b.f.preset, preset{s, value, v})
	return s, err
}

// specialSlot is a register that holds a special one, of those that stay the same
// while a thread runs.
func (b *builder) specialSlot(which special) (int32, error) {
	if s, ok := b.special[which]; ok {
		return s, nil
	}
	b.f.reserves = b.f.reserves || which == reservedShared
	s, err := b.newSlot()
	b.special[which] = s
	b.f.special, b.f.which = append(b.f.special, s), append(b.f.which, which)
	return s, err
}
