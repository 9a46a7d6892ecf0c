package ptx

import (
	"math"
	"sync"
)

// A build takes an instruction's operands from the text and emits it. It takes the modifiers
// that it knows from the opcode; others are refused.
type build func(*builder, *opcode)

// table is every instruction that is known, made when the first is read.
var table func() map[string]build

func init() { table = sync.OnceValue(newTable) } // not a literal: instructions refer to the table through what they call

// newTable makes the table. To add an instruction, add a row.
func newTable() map[string]build {
	return map[string]build{
		// Integers and floats alike.
		"add": byPair(carried(false, arithmetic(two(addRows)))), "addc": carried(true, noOther),
		"sub": carried(false, arithmetic(two(subRows))), "subc": carried(true, noOther),
		"mad": carried(false, arithmetic(multiply)), "madc": carried(true, noOther),
		"mul": arithmetic(multiply), "fma": arithmetic(fused), "div": arithmetic(two(divRows)), "rem": two(remRows),
		"min": byPair(extremum(false, two(minRows))), "max": byPair(extremum(true, two(maxRows))),
		"neg": signs(flipped, one(negRows)), "abs": signs(cleared, one(absRows)),
		"mul24": multiply24, "mad24": multiply24, "sad": sized(sadRows, alikeFour), "dp4a": dot, "dp2a": dot,
		// Bits.
		"and": two(andRows), "or": two(orRows), "xor": two(xorRows), "not": one(notRows),
		"shl": shift(shlRows), "shr": shift(shrRows), "cnot": one(cnotRows),
		"popc": count(popcRows), "clz": count(clzRows), "brev": one(brevRows),
		"bfe": sized(bfeRows, fieldTypes), "bfi": insertField, "bfind": findBit, "fns": sized(fnsRows, fnsTypes),
		"szext": clamped(extendBits, extendTypes, tu32, ts32), "bmsk": clamped(bitMask, extendTypes, tb32),
		"shf": funnel, "prmt": permute, "lop3": lookUp,
		// Floats.
		"sqrt": arithmetic(one(sqrtRows)), "rcp": arithmetic(one(rcpRows)), "copysign": copySign, "testp": testNumber,
		"rsqrt": approximate, "sin": approximate, "cos": approximate, "lg2": approximate, "ex2": approximate, "tanh": approximate,
		// Comparisons.
		"setp": compare, "set": compareToValue, "selp": choose, "slct": chooseBySign,
		// Video.
		"vadd": video, "vsub": video, "vabsdiff": video, "vmin": video, "vmax": video, "vshl": video, "vshr": video, "vset": video,
		"vmad":  videoMultiply,
		"vadd2": videoVector, "vsub2": videoVector, "vavrg2": videoVector, "vabsdiff2": videoVector, "vmin2": videoVector, "vmax2": videoVector, "vset2": videoVector,
		"vadd4": videoVector, "vsub4": videoVector, "vavrg4": videoVector, "vabsdiff4": videoVector, "vmin4": videoVector, "vmax4": videoVector, "vset4": videoVector,
		// Copies and conversions.
		"mov": move, "cvt": convertPacked(convert), "cvta": convertAddress, "isspacep": isSpace,
		"ld": load, "ldu": load, "st": store, "prefetch": ignoreAddress, "prefetchu": ignoreAddress,
		"atom": buildAtomic, "red": buildAtomic,
		// Control.
		"bra": branch, "ret": plain(runReturn), "exit": plain(runExit), "trap": plain(runTrap), "call": call,
		"brx": branchIndexed, "brkpt": plain(runBreakpoint), "nanosleep": sleep,
		"alloca": allocate, "stacksave": saveStack, "stackrestore": restoreStack,
		"bar": barrier, "barrier": barrier, "membar": fence, "fence": fence,
		"cp": copyAsync, "mbarrier": mbarrier,
		// Hints about speed.
		"pmevent": hintProfiler, "griddepcontrol": hint(0, "wait", "launch_dependents"), "setmaxnreg": hintRegisters,
		"applypriority": hintAt("L2::evict_normal"), "discard": hintAt("L2"), "createpolicy": createPolicy,
		// Warps.
		"vote": vote, "match": match, "shfl": shuffle, "redux": reduce, "elect": elect, "activemask": activeMask,
	}
}

// plain builds an instruction without operands.
func plain(r run) build {
	return func(b *builder, o *opcode) {
		o.take("uni")
		b.emit(inst{run: r})
	}
}

// rows are the forms of an instruction by type. Those of floats are functions of
// up to three operands; those of two ignore the last.
type rows struct {
	ints map[typ]run
	f32  func(a, b, c float32) float32
	f64  func(a, b, c float64) float64
}

// types by name, for tables.
var (
	tb16, tb32, tb64 = typeNames["b16"], typeNames["b32"], typeNames["b64"]
	tu16, tu32, tu64 = typeNames["u16"], typeNames["u32"], typeNames["u64"]
	ts16, ts32, ts64 = typeNames["s16"], typeNames["s32"], typeNames["s64"]
	tf32, tf64       = typeNames["f32"], typeNames["f64"]
	tpred            = typeNames["pred"]
)

// form picks the row for the opcode's first type, and refuses the ways of
// rounding that are not to the nearest.
func (o *opcode) form(r rows) (run, typ) {
	t := o.typ(0)
	switch {
	case t == tf32 && r.f32 != nil:
		return o.single(r.f32), t
	case t == tf64 && r.f64 != nil:
		return o.double(r.f64), t
	}
	return row(o, r.ints, t), t
}

// single makes the form for .f32, whose NaN is always the same.
func (o *opcode) single(f func(a, b, c float32) float32) run {
	if o.take("ftz") {
		f = flushed(f, operations[o.name])
	}
	if o.take("sat") {
		exact := f
		f = func(a, b, c float32) float32 { return saturate(exact(a, b, c)) }
	}
	o.take("rn")
	return func(t *thread, i *inst) { t.r[i.d] = number32(f(f32(t.r[i.a]), f32(t.r[i.b]), f32(t.r[i.c]))) }
}

// double makes the form for .f64.
func (o *opcode) double(f func(a, b, c float64) float64) run {
	o.take("rn")
	return func(t *thread, i *inst) {
		a, b, c := t.r[i.a], t.r[i.b], t.r[i.c]
		t.r[i.d] = number64(f(f64(a), f64(b), f64(c)), a, b, c)
	}
}

// saturate clamps to 0 … 1; NaN becomes 0.
func saturate(v float32) float32 {
	switch {
	case !(v > 0):
		return 0
	case v > 1:
		return 1
	}
	return v
}

// flushed takes subnormal operands and results for zeros of their sign. f is the
// operation, rounded to the nearest.
func flushed(f func(a, b, c float32) float32, op operation) func(a, b, c float32) float32 {
	return func(a, b, c float32) float32 {
		a, b, c = flush(a), flush(b), flush(c)
		v := f(a, b, c)
		if b32(v)&^single.sign() == 1<<23 && op.f != nil { // it may have been subnormal before it was rounded
			return f32(op.f(flushing[single], b32(a), b32(b), b32(c), toEven))
		}
		return flush(v)
	}
}

func flush(v float32) float32 {
	if bits := math.Float32bits(v); bits&0x7f800000 == 0 {
		return math.Float32frombits(bits & 0x80000000)
	}
	return v
}

// one builds d = f(a).
func one(r rows) build { return shaped(r, func(t typ) []typ { return []typ{t, t} }) }

// shaped builds an instruction whose operands have the types that types makes of its first.
func shaped(r rows, types func(t typ) []typ) build {
	return func(b *builder, o *opcode) {
		f, t := o.form(r)
		b.emitTyped(f, types(t)...)
	}
}

// two builds d = f(a, b).
func two(r rows) build {
	return func(b *builder, o *opcode) {
		if t := o.typ(0); t.kind != float && o.take("sat") {
			saturating(b, o)
			return
		}
		f, t := o.form(r)
		b.emitTyped(f, t, t, t)
	}
}

// emitTyped takes the operands of an instruction, the first of which is written,
// and emits it.
func (b *builder) emitTyped(f run, types ...typ) {
	args := b.arguments(len(types))
	b.emitOperands(f, args, types...)
}

// emitOperands is emitTyped with operands that were taken. Sources past the third
// are in vec.
func (b *builder) emitOperands(f run, args []operand, types ...typ) {
	i := inst{run: f, d: b.target(args[0], types[0])}
	sources := []*int32{&i.a, &i.b, &i.c}
	for k, t := range types[1:] {
		s := b.source(args[k+1], t)
		if k < len(sources) {
			*sources[k] = s
		} else {
			i.vec = append(i.vec, s)
		}
	}
	for k := len(types) - 1; k < len(sources); k++ {
		*sources[k] = i.a // read and not used
	}
	b.emit(i)
}

func boolBits(v bool) uint64 {
	if v {
		return 1
	}
	return 0
}

func f32(v uint64) float32 { return math.Float32frombits(uint32(v)) }
func f64(v uint64) float64 { return math.Float64frombits(v) }
func b32(v float32) uint64 { return uint64(math.Float32bits(v)) }
func b64(v float64) uint64 { return math.Float64bits(v) }

// The NaNs that arithmetic gives on the GPU; those of CPUs differ. Doubles keep an
// operand's.
const (
	nan32   = 0x7fffffff
	nan64   = 0xfff8000000000000
	quiet64 = 1 << 51
)

// number32 returns the bits of a result.
func number32(v float32) uint64 {
	if v != v {
		return nan32
	}
	return b32(v)
}

// number64 is number32 for doubles; a NaN keeps the bits of the operand that was one.
func number64(v float64, operands ...uint64) uint64 {
	if v == v {
		return b64(v)
	}
	for _, o := range operands {
		if f64(o) != f64(o) {
			return o | quiet64
		}
	}
	return nan64
}
