package ptx

import (
	"math"
	"strings"
)

// Video instructions work on bytes and halves of 32 bits: the scalar ones on one
// part of each operand, those that end in 2 or 4 on all.

// parts are the selectors behind a scalar operand.
var parts = map[string]struct{ shift, size int }{
	"b0": {0, 1}, "b1": {8, 1}, "b2": {16, 1}, "b3": {24, 1}, "h0": {0, 2}, "h1": {16, 2},
}

// A part is an operand's, or the target's.
type part struct {
	typ   typ // of 32 bits
	shift int
	size  int // bytes
}

// get returns the part's value.
func (p part) get(v uint64) int64 { return typ{p.typ.kind, p.size}.number(v >> p.shift) }

// put returns old with the part replaced.
func (p part) put(old, v uint64) uint64 {
	mask := typ{bitsKind, p.size}.mask() << p.shift
	return old&^mask | v<<p.shift&mask
}

// partOf takes a selector off the next token.
func (b *builder) partOf(t typ) part {
	whole := part{t, 0, 4}
	tok := b.p.peek()
	name, suffix, ok := cutLast(tok.text)
	if s, known := parts[suffix]; ok && known {
		b.p.ahead[0].text = name
		return part{t, s.shift, s.size}
	}
	return whole
}

// cutLast cuts a word at its last dot.
func cutLast(s string) (before, after string, ok bool) {
	n := strings.LastIndexByte(s, '.')
	if n < 1 {
		return s, "", false
	}
	return s[:n], s[n+1:], true
}

// intOps are functions of two whole numbers; the video instructions have a v before
// their names.
var intOps = map[string]func(a, b int64) int64{
	"add":     func(a, b int64) int64 { return a + b },
	"sub":     func(a, b int64) int64 { return a - b },
	"absdiff": func(a, b int64) int64 { return max(a-b, b-a) },
	"min":     smaller[int64],
	"max":     larger[int64],
	"avrg": func(a, b int64) int64 { // of vectors only; halves are rounded away from zero
		s := a + b
		return (s + int64(boolBits(s >= 0))) >> 1
	},
}

// intTypes takes n types of 32 bits.
func (o *opcode) intTypes(n int) (list []typ) {
	for k := range n {
		t := o.typ(k)
		o.refuseIf(t != tu32 && t != ts32, "not with .%s", t)
		list = append(list, t)
	}
	return list
}

// saturate clamps to what so many bytes of the type hold.
func (p part) saturate(v int64) int64 {
	bits := 8 * p.size
	if p.typ.kind == signed {
		return max(-1<<(bits-1), min(1<<(bits-1)-1, v))
	}
	return max(0, min(1<<bits-1, v))
}

// video builds vadd, vsub, vabsdiff, vmin, vmax, vshl, vshr and vset.
func video(b *builder, o *opcode) {
	types := o.videoTypes(o.name)
	f := o.videoFunction(types)
	v := videoMode{name: o.name, dt: types[0], at: types[1], bt: types[2], f: f}
	v.sat = o.name != "vset" && o.take("sat")
	v.merge = o.takeOne("add", "min", "max")
	o.refuseIf((v.merge == "min" || v.merge == "max") && !v.tried(), "with .%s and these types: what a GPU gives is not known", v.merge)
	b.videoOperands(o, v)
}

// tried reports whether .min or .max has been seen on a GPU.
func (v videoMode) tried() bool {
	switch v.name {
	case "vset":
		return v.merge == "max" && v.at == tu32 && v.bt == tu32
	case "vshl":
		return v.merge == "min" && v.dt == tu32 && v.at == tu32
	case "vshr":
		return v.merge == "max" && v.dt == ts32 && v.at == ts32
	}
	return true
}

// A videoMode is how a scalar instruction computes. GPUs have no such instructions
// any more: what the driver's compiler puts in their place is not always what the
// ISA says, and is done here.
type videoMode struct {
	name       string
	dt, at, bt typ
	f          func(a, b int64) int64
	sat        bool
	merge      string // with the third operand: add, min, max, or nothing
	target     part
}

// videoTypes takes the types of the result and of both operands; that of a comparison
// is not in the text.
func (o *opcode) videoTypes(name string) []typ {
	if name == "vset" {
		return append([]typ{tu32}, o.intTypes(2)...)
	}
	return o.intTypes(3)
}

// videoComparison is what vset does.
func (o *opcode) videoComparison() func(a, b int64) int64 {
	is, ok := oneOf(o, intComparisons)
	o.refuseIf(!ok, "without a comparison")
	return func(a, b int64) int64 { return int64(boolBits(is(a, b))) }
}

// videoFunction is what a scalar instruction does.
func (o *opcode) videoFunction(types []typ) func(a, b int64) int64 {
	switch o.name {
	case "vset":
		return o.videoComparison()
	case "vshl", "vshr":
		wrap := o.take("wrap")
		o.refuseIf(!wrap && !o.take("clamp") || types[2] != tu32, "without .clamp or .wrap")
		return videoShift(o.name == "vshl", wrap, o.has("min"))
	}
	return intOps[o.name[1:]]
}

var intComparisons = map[string]func(a, b int64) bool{
	"eq": func(a, b int64) bool { return a == b }, "ne": func(a, b int64) bool { return a != b },
	"lt": func(a, b int64) bool { return a < b }, "le": func(a, b int64) bool { return a <= b },
	"gt": func(a, b int64) bool { return a > b }, "ge": func(a, b int64) bool { return a >= b },
}

// videoShift shifts by at most 32, or by the low five bits. There are 34 bits, or all
// if the result is compared with something.
func videoShift(left, wrap, all bool) func(a, b int64) int64 {
	return func(a, b int64) int64 {
		n := min(uint64(b)&0xffffffff, 32)
		if wrap {
			n = uint64(b) & 31
		}
		switch {
		case left && all:
			return int64(min(uint64(a)<<n, math.MaxInt64))
		case left:
			return a << n << 30 >> 30
		}
		return a >> n
	}
}

// videoOperands takes d, a, b with their selectors, and c where there is something
// to merge with, and emits.
func (b *builder) videoOperands(o *opcode, v videoMode) {
	v.target = b.partOf(v.dt)
	d := b.p.operand(b)
	i := inst{d: b.target(d, v.dt)}
	pa, pb := part{}, part{}
	pa, i.a = b.videoSource(v.at)
	pb, i.b = b.videoSource(v.bt)
	i.c = i.a
	third := b.p.peek().is(",")
	if third {
		_, i.c = b.videoSource(v.dt)
	}
	if inserts, merges := v.inserts(), v.merge != ""; third != (inserts || merges) || inserts && merges {
		panic(o.refuse("these operands"))
	}
	i.run = func(t *thread, i *inst) {
		t.r[i.d] = v.result(v.f(pa.get(t.r[i.a]), pb.get(t.r[i.b])), t.r[i.c])
	}
	b.emit(i)
}

// inserts reports whether a part of the third operand is replaced.
func (v videoMode) inserts() bool { return v.target.size < 4 }

// result makes the bits of a number and the third operand.
func (v videoMode) result(x int64, c uint64) uint64 {
	if v.sat {
		x = v.saturate(x)
	}
	switch {
	case v.merge == "add":
		return uint64(uint32(x) + uint32(c))
	case v.merge != "":
		return v.larger(x, c)
	case v.inserts() && (v.name == "vset" || v.sat && v.target.size == 2):
		return v.target.put(c, 0)
	case v.inserts():
		return v.target.put(c, uint64(x))
	}
	return uint64(uint32(x))
}

// saturate clamps: a part as if the number had no sign, except a number that was
// shifted to 32 bits. A larger one without a sign is clamped only if it was
// shifted.
func (v videoMode) saturate(x int64) int64 {
	switch {
	case v.name == "vshl":
		return part{v.dt, 0, 4}.saturate(x)
	case v.inserts():
		most := typ{bitsKind, v.target.size}.mask()
		if v.dt.kind == signed {
			most >>= 1
		}
		return int64(min(uint64(uint32(x)), most))
	case v.dt.kind == unsigned:
		return int64(uint32(max(0, x)))
	}
	return v.target.saturate(x)
}

// larger returns the larger or the smaller of x and c. A sum, difference or minimum whose
// top bit is set counts as the larger if there is no sign.
func (v videoMode) larger(x int64, c uint64) uint64 {
	whole := part{v.dt, 0, 4}
	wide := v.name == "vabsdiff" || v.name == "vshl"
	if !wide && (v.name != "vmax" || v.dt.kind == unsigned) {
		x = whole.get(uint64(x))
	}
	y := whole.get(c)
	xLarger := x > y || x > math.MaxInt32 && !wide && v.name != "vmax"
	if xLarger == (v.merge == "max") {
		y = x
	}
	return uint64(uint32(y))
}

// videoSource takes a comma and an operand with its selector.
func (b *builder) videoSource(t typ) (p part, slot int32) {
	b.p.expect(",")
	return b.partSource(t)
}

func (b *builder) partSource(t typ) (p part, slot int32) {
	p = b.partOf(t)
	o := b.p.operand(b)
	slot = b.source(o, t)
	return p, slot
}
