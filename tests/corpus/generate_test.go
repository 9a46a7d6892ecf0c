package corpus

import (
	"fmt"
	"math"
	"regexp"
	"strings"
)

// A generator writes a random kernel, always the same for a seed. What it writes is
// bit-exact on every GPU: no approximations, no result that depends on who comes
// first, no NaN whose payload gets out, no division by zero.
type generator struct {
	state   uint64
	module  strings.Builder // functions and variables, before the kernel
	body    *strings.Builder
	name    string
	labels  int
	depth   int  // of branches and loops
	uniform bool // all threads of the block are here
	calls   bool // there are functions to call, and this is none of them
	loose   bool // floats say nothing of their rounding
	plain   bool // there are no branches
	small   bool // loose are halves, too, and what flushes and saturates
}

// Threads of a kernel, and bytes that each leaves.
const (
	randomBlocks  = 2
	randomThreads = 64
	randomBytes   = 160
	randomInput   = 8192
)

const randomVersion = "8.0"

const randomHeader = ".version " + randomVersion + "\n.target sm_90\n.address_size 64\n"

// newGenerator is one for a kernel of the seed's own. It begins where no other's numbers
// come along.
func newGenerator(seed int) *generator {
	g := &generator{state: uint64(seed), name: fmt.Sprintf("k%d", seed)}
	g.state = g.next()
	return g
}

// kernel writes the kernel of a seed, with what belongs to it.
func kernel(seed int) string {
	if seed == refusedSeed {
		return "This is no kernel.\n"
	}
	g := newGenerator(seed)
	g.loose = seed >= firstLoose
	g.plain = g.loose && (seed < firstLoose+40 || seed >= firstPlain)
	g.small = g.plain && (seed >= firstLoose+20 && seed < firstPlain || seed >= firstPlain+80)
	var tables strings.Builder
	for _, space := range []string{"const", "global"} {
		fmt.Fprintf(&tables, ".%s .align 16 .u32 %s_%s[16] = {", space, space, g.name)
		for i := range 16 {
			fmt.Fprintf(&tables, "%s%d", map[bool]string{true: ", "}[i > 0], uint32(g.next()))
		}
		tables.WriteString("};\n")
	}
	if !g.loose && g.chance(2) {
		g.functions()
	}
	var b strings.Builder
	g.body = &b
	g.begin()
	g.uniform = true
	if g.loose {
		g.moderate()
	}
	for range 3 + g.n(4) {
		g.block(4 + g.n(8))
		if !g.plain {
			g.together()
		}
	}
	g.end()
	return tables.String() + g.module.String() + b.String()
}

// next is splitmix64.
func (g *generator) next() uint64 {
	g.state += 0x9e3779b97f4a7c15
	z := (g.state ^ g.state>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func (g *generator) n(n int) int { return int(g.next() >> 33 % uint64(n)) }

// chance is one in n.
func (g *generator) chance(n int) bool { return g.n(n) == 0 }

func one[T any](g *generator, list []T) T { return list[g.n(len(list))] }

func (g *generator) say(format string, args ...any) { fmt.Fprintf(g.body, format+"\n", args...) }

// registers that hold values: how many there are of each, and how they are declared.
var registers = []struct {
	letter byte
	name   string
	count  int
	typ    string
}{
	{'r', "r", 8, "b32"}, {'d', "d", 6, "b64"}, {'f', "f", 4, "f32"}, {'g', "g", 4, "f64"},
	{'h', "h", 4, "b16"}, {'e', "e", 4, "b16"}, {'x', "x", 2, "b32"}, {'p', "p", 4, "pred"},
}

func (g *generator) register(letter byte) string {
	for _, r := range registers {
		if r.letter == letter {
			return fmt.Sprintf("%%%s%d", r.name, g.n(r.count))
		}
	}
	return ""
}

// declare declares registers: those of values, and others for a few instructions.
func (g *generator) declare() {
	for _, r := range registers {
		g.say(".reg .%s %%%s<%d>;", r.typ, r.name, r.count)
	}
	g.say(".reg .b32 %%t<10>; .reg .b64 %%u<10>; .reg .b16 %%s<4>; .reg .pred %%q<10>; .reg .b32 %%c<8>;")
}

// begin writes the kernel's head, and gives every register a value.
func (g *generator) begin() {
	g.say(".visible .entry %s(.param .u64 in, .param .u64 out) {", g.name)
	g.declare()
	g.say(".reg .b32 %%me, %%all; .reg .b64 %%in, %%out, %%depot, %%fun;")
	g.say(".local .align 16 .b8 depot[64]; .shared .align 16 .b8 pool[%d]; .shared .align 16 .b8 sums[64];", 16*randomThreads)
	g.say("ld.param.u64 %%in, [in]; ld.param.u64 %%out, [out]; mov.u32 %%me, %%tid.x;")
	g.say("mov.u32 %%t0, %%ctaid.x; mad.lo.u32 %%all, %%t0, %d, %%me; mov.u64 %%depot, depot;", randomThreads)
	for i := range 4 {
		g.say("st.local.v4.u32 [depot+%d], {%%all, %%me, %%t0, %%all};", 16*i)
	}
	g.say("setp.lt.u32 %%q0, %%me, 16; shl.b32 %%t1, %%me, 2; mov.u32 %%t2, sums; add.u32 %%t2, %%t2, %%t1; @%%q0 st.shared.u32 [%%t2], %%me;")
	g.say("mul.wide.u32 %%u0, %%all, 64; add.s64 %%u0, %%in, %%u0;")
	g.say("ld.global.v4.u32 {%%r0, %%r1, %%r2, %%r3}, [%%u0]; ld.global.v2.u64 {%%d0, %%d1}, [%%u0+16];")
	g.say("ld.global.u8 %%r4, [%%u0+32]; ld.global.s16 %%r5, [%%u0+34]; mov.u32 %%r6, %%me; add.u32 %%r7, %%all, 1;")
	g.say("ld.global.s32 %%d2, [%%u0+36]; cvt.u64.u32 %%d3, %%all; ld.global.u64 %%d4, [%%u0+40]; mov.u64 %%d5, %d;", int64(g.next()))
	g.say("ld.global.f32 %%f0, [%%u0+48]; cvt.rn.f32.s32 %%f1, %%r0; cvt.rn.f32.s32 %%f2, %%r5; mul.rn.f32 %%f2, %%f2, 0f3C23D70A; cvt.rn.f32.u32 %%f3, %%me;")
	g.say("ld.global.f64 %%g0, [%%u0+56]; cvt.rn.f64.s64 %%g1, %%d0; cvt.rn.f64.s32 %%g2, %%r5; mul.rn.f64 %%g2, %%g2, 0d3F847AE147AE147B; cvt.rn.f64.u32 %%g3, %%all;")
	g.say("ld.global.v4.u16 {%%h0, %%h1, %%h2, %%h3}, [%%u0+24]; cvt.rn.f16.f32 %%e0, %%f2; cvt.rn.f16.f32 %%e1, %%f3; cvt.rn.f16.f32 %%e2, %%f1; ld.global.u16 %%e3, [%%u0+6];")
	g.say("mov.b32 %%x0, {%%e0, %%e1}; mov.b32 %%x1, {%%e3, %%e2};")
	g.say("setp.lt.s32 %%p0, %%r0, 0; setp.gt.u32 %%p1, %%me, 20; setp.ne.s32 %%p2, %%r5, 0; setp.lt.s64 %%p3, %%d0, %%d1;")
	g.say("bar.sync 0;")
}

// moderate makes all floats such that some sums and products of them are no
// infinities.
func (g *generator) moderate() {
	for i := range 4 {
		g.say("cvt.rn.f32.s32 %%f%d, %%r%d; mul.rn.f32 %%f%d, %%f%d, 0f30000000;", i, i, i, i)
		g.say("cvt.rn.f64.s64 %%g%d, %%d%d; mul.rn.f64 %%g%d, %%g%d, 0d3C00000000000000; cvt.rn.f16.f32 %%e%d, %%f%d;", i, i&1, i, i, i, i)
	}
	g.say("fma.rn.f64 %%g2, %%g0, %%g1, %%g2; fma.rn.f64 %%g3, %%g1, %%g1, %%g0; mov.b32 %%x0, {%%e0, %%e1}; mov.b32 %%x1, {%%e3, %%e2};")
}

// end stores every register.
func (g *generator) end() {
	g.say("mul.wide.u32 %%u0, %%all, %d; add.s64 %%u0, %%out, %%u0;", randomBytes)
	g.say("st.global.v4.u32 [%%u0], {%%r0, %%r1, %%r2, %%r3}; st.global.v4.u32 [%%u0+16], {%%r4, %%r5, %%r6, %%r7};")
	for i := range 3 {
		g.say("st.global.v2.u64 [%%u0+%d], {%%d%d, %%d%d};", 32+16*i, 2*i, 2*i+1)
	}
	for i := range 4 {
		g.plainBits("r", fmt.Sprintf("%%f%d", i), "%t1")
		g.say("st.global.u32 [%%u0+%d], %%t1;", 80+4*i)
		g.plainBits("d", fmt.Sprintf("%%g%d", i), "%u1")
		g.say("st.global.u64 [%%u0+%d], %%u1;", 96+8*i)
		g.say("st.global.u16 [%%u0+%d], %%h%d;", 128+2*i, i)
		g.plainBits("h", fmt.Sprintf("%%e%d", i), "%s0")
		g.say("st.global.u16 [%%u0+%d], %%s0;", 136+2*i)
		g.say("selp.u32 %%t%d, %d, 0, %%p%d;", 2+i, 1<<i, i)
	}
	for i := range 2 {
		g.plainPair(fmt.Sprintf("%%x%d", i))
		g.say("st.global.u32 [%%u0+%d], %%t1;", 144+4*i)
	}
	g.say("or.b32 %%t2, %%t2, %%t3; or.b32 %%t4, %%t4, %%t5; or.b32 %%t2, %%t2, %%t4;")
	g.say("ld.local.u32 %%t3, [depot+%d]; xor.b32 %%t2, %%t2, %%t3; st.global.u32 [%%u0+152], %%t2;", 4*g.n(16))
	g.say("and.b32 %%t3, %%me, 15; shl.b32 %%t3, %%t3, 2; mov.u32 %%t4, sums; add.u32 %%t4, %%t4, %%t3; bar.sync 0; ld.shared.u32 %%t3, [%%t4]; st.global.u32 [%%u0+156], %%t3;")
	g.say("ret;\n}")
}

// plainBits writes the bits of a float to a register, those of every NaN alike.
func (g *generator) plainBits(class, from, to string) {
	switch class {
	case "r":
		g.say("mov.b32 %%t0, %s; setp.nan.f32 %%q0, %s, %s; selp.b32 %s, 2143289344, %%t0, %%q0;", from, from, from, to)
	case "d":
		g.say("mov.b64 %%u9, %s; setp.nan.f64 %%q0, %s, %s; selp.b64 %s, 9221120237041090560, %%u9, %%q0;", from, from, from, to)
	case "h":
		g.say("setp.nan.f16 %%q0, %s, %s; selp.b16 %s, 32256, %s, %%q0;", from, from, to, from)
	}
}

// plainPair is plainBits for a pair of halves, to %t1.
func (g *generator) plainPair(from string) {
	g.say("mov.b32 {%%s1, %%s2}, %s;", from)
	g.plainBits("h", "%s1", "%s1")
	g.plainBits("h", "%s2", "%s2")
	g.say("mov.b32 %%t1, {%%s1, %%s2};")
}

// block writes some statements.
func (g *generator) block(count int) {
	for range count {
		g.statement()
	}
}

func (g *generator) statement() {
	if g.plain {
		g.instruction()
		return
	}
	switch k := g.n(24); {
	case k == 0 && g.depth < 3:
		g.branch()
	case k == 1 && g.depth < 2 && !g.loose: // what is the same in each turn is taken out of it, and may be contracted there
		g.loop()
	case k == 2 && g.depth < 2 && !g.loose:
		g.choose()
	case k == 3:
		g.memory()
	case k == 4 && g.calls:
		g.call()
	case k == 5:
		g.bits()
	default:
		g.instruction()
	}
}

// label makes a new one.
func (g *generator) label() string {
	g.labels++
	return fmt.Sprintf("L%s_%d", g.name, g.labels)
}

// within writes statements that not all threads run.
func (g *generator) within(count int) {
	was := g.uniform
	g.uniform = false
	g.depth++
	g.block(count)
	g.depth--
	g.uniform = was
}

// branch writes if and else.
func (g *generator) branch() {
	no, over, p := g.label(), g.label(), g.register('p')
	g.say("@%s%s bra %s;", map[bool]string{true: "!"}[g.chance(2)], p, no)
	g.within(1 + g.n(5))
	if g.chance(2) {
		g.say("bra %s;\n%s:", over, no)
		g.within(1 + g.n(5))
		g.say("%s:", over)
		return
	}
	g.say("%s:", no)
}

// loop writes one of up to eight turns, that depend on the data or do not, and
// perhaps with a way out.
func (g *generator) loop() {
	again, out := g.label(), g.label()
	c := fmt.Sprintf("%%c%d", g.depth)
	if g.chance(2) {
		g.say("and.b32 %s, %s, 7;", c, g.register('r'))
	} else {
		g.say("mov.u32 %s, %d;", c, g.n(8))
	}
	g.say("%s:", again)
	g.within(1 + g.n(5))
	if g.chance(3) {
		g.say("@%s bra %s;", g.register('p'), out)
		g.within(1)
	}
	g.say("setp.eq.u32 %%q1, %s, 0; sub.u32 %s, %s, 1; @!%%q1 bra %s;\n%s:", c, c, c, again, out)
}

// choose jumps by a table.
func (g *generator) choose() {
	table, over := g.label(), g.label()
	places := []string{g.label(), g.label(), g.label()}
	g.say("and.b32 %%t0, %s, 3;", g.register('r'))
	g.say("%s: .branchtargets %s, %s, %s, %s;", table, places[0], places[1], places[2], places[g.n(3)])
	g.say("brx.idx %%t0, %s;", table)
	for i, p := range places {
		g.say("%s:", p)
		g.within(1 + g.n(3))
		if i < 2 && !g.chance(4) {
			g.say("bra %s;", over)
		}
	}
	g.say("%s:", over)
}

// instruction writes one, perhaps with a predicate.
func (g *generator) instruction() {
	list := patterns
	switch {
	case g.small && g.chance(2):
		list = looseSmall
	case g.loose && (g.plain || !g.chance(4)):
		list = loosePatterns
	}
	text := g.expand(one(g, list))
	if !g.plain && !strings.Contains(text, "\n") && g.chance(8) && !unguarded.MatchString(text) {
		text = fmt.Sprintf("@%s%s %s", map[bool]string{true: "!"}[g.chance(2)], g.register('p'), text)
	}
	g.say("%s", text)
}

// unguarded are instructions that take no predicate here: of some of them the GPU's
// assembler leaves it out.
var unguarded = regexp.MustCompile(`^(testp|v[a-z]+[24])\.`)

// expand makes an instruction of a pattern: <a,b> is one of them, $r a register that
// is read, $R one that is written. registers has the letters, by type. $i is perhaps a
// number instead, $j one of 64 bits, $s one to shift by, $m one of eight bits, $v a
// number of .f32 and $w one of .f64.
func (g *generator) expand(pattern string) string {
	var s strings.Builder
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; {
		case c == '<':
			end := i + strings.IndexByte(pattern[i:], '>')
			s.WriteString(one(g, strings.Split(pattern[i+1:end], ",")))
			i = end
		case c == '$':
			i++
			s.WriteString(g.place(pattern[i]))
		default:
			s.WriteByte(c)
		}
	}
	return s.String()
}

// place fills one place of a pattern.
func (g *generator) place(c byte) string {
	switch c {
	case 'i', 'j':
		if g.chance(3) {
			return g.number(c == 'j')
		}
		return g.register(map[byte]byte{'i': 'r', 'j': 'd'}[c])
	case 's':
		if g.chance(2) {
			return fmt.Sprint(g.n(36))
		}
		return g.register('r')
	case 'm':
		return fmt.Sprint(g.n(256))
	case 'v':
		return fmt.Sprintf("0f%08X", math.Float32bits(g.float()))
	case 'w':
		return fmt.Sprintf("0d%016X", math.Float64bits(float64(g.float())))
	}
	return g.register(c | 0x20)
}

// number is one that is worth a try, or any.
func (g *generator) number(long bool) string {
	if g.chance(3) {
		if long {
			return fmt.Sprint(int64(g.next()))
		}
		return fmt.Sprint(int32(g.next()))
	}
	return one(g, []string{"0", "1", "-1", "2", "7", "31", "32", "255", "-128", "65535", "65536", "2147483647", "-2147483648", "16777216"})
}

func (g *generator) float() float32 {
	return one(g, []float32{0, 1, -1, 0.5, 3, 1e-3, -1e10, 1e38, 1e-38, 1e-45, 16777216, 1.0000001, 0.1, float32(math.Inf(1))})
}

// bits takes a float's for an integer, or the other way round.
func (g *generator) bits() {
	switch g.n(8) {
	case 0:
		g.plainBits("r", g.register('f'), g.register('r'))
	case 1:
		g.plainBits("d", g.register('g'), g.register('d'))
	case 2:
		g.plainBits("h", g.register('e'), g.register('h'))
	case 3:
		g.plainPair(g.register('x'))
		g.say("mov.b32 %s, %%t1;", g.register('r'))
	case 4:
		g.say("mov.b32 %s, %s;", g.register('f'), g.register('r'))
	case 5:
		g.say("mov.b64 %s, %s;", g.register('g'), g.register('d'))
	case 6:
		g.say("mov.b16 %s, %s;", g.register('e'), g.register('h'))
	case 7:
		g.say("mov.b64 %s, {%s, %s};", g.register('d'), g.register('r'), g.register('r'))
	}
}

// memory reads and writes what is the thread's own, or does not change.
func (g *generator) memory() {
	g.say("and.b32 %%t0, %s, 60; cvt.u64.u32 %%u0, %%t0;", g.register('r'))
	switch g.n(7) {
	case 0:
		g.say("add.s64 %%u0, %%depot, %%u0; st.local.u32 [%%u0], %s;", g.register('r'))
	case 1:
		g.say("add.s64 %%u0, %%depot, %%u0; ld.local.%s %s, [%%u0+%d];", one(g, []string{"u8", "s8", "b32"}), g.register('r'), g.n(4)&^3)
	case 2:
		g.say("and.b64 %%u0, %%u0, 56; cvta.local.u64 %%u1, %%depot; add.s64 %%u0, %%u1, %%u0; st.u64 [%%u0], %s; ld.%s %s, [%%u0+4];",
			g.register('d'), one(g, []string{"u32", "s32", "u16", "s16"}), g.register('d'))
	case 3:
		g.say("mov.u64 %%u1, const_%s; add.s64 %%u1, %%u1, %%u0; ld.const.%s %s, [%%u1];", g.name, one(g, []string{"u32", "u16", "s8"}), g.register('r'))
	case 4:
		g.say("mov.u64 %%u1, global_%s; add.s64 %%u1, %%u1, %%u0; ld.global.%s %s, [%%u1];", g.name, one(g, []string{"u32", "s16"}), g.register('d'))
	case 5:
		a := g.n(5)
		g.say("and.b32 %%t0, %s, %d; cvt.u64.u32 %%u0, %%t0; add.s64 %%u0, %%in, %%u0; ld.global.nc.v4.u32 {%%r%d, %%r%d, %%r%d, %%r%d}, [%%u0];",
			g.register('r'), randomInput-16, a, a+3, a+1, a+2)
	case 6:
		k := g.n(6) // a word for each, or the order would matter
		g.say("red.shared.%s [sums+%d], %s;", []string{"add.u32", "min.s32", "max.u32", "xor.b32", "and.b32", "or.b32"}[k], 4*k, g.register('r'))
	}
}

// together writes what all threads do at once: they give each other values.
func (g *generator) together() {
	switch g.n(12) {
	case 0, 1:
		g.exchange()
	case 2, 3:
		g.say("shfl.sync.%s.b32 %s|%s, %s, %s, %s, -1;", one(g, []string{"up", "down", "bfly", "idx"}), g.register('r'), g.register('p'),
			g.register('r'), g.place('s'), one(g, []string{"31", "0", "0x1f1f", "0x181f", "0x1807", "0x100f"}))
	case 4:
		g.say("vote.sync.%s.pred %s, %s, -1;", one(g, []string{"all", "any", "uni"}), g.register('p'), g.register('p'))
	case 5:
		g.say("vote.sync.ballot.b32 %s, %s, -1;", g.register('r'), g.register('p'))
	case 6:
		g.say("and.b32 %%t0, %s, %d; match.any.sync.b32 %s, %%t0, -1;", g.register('r'), g.n(8), g.register('r'))
	case 7:
		g.say("redux.sync.%s %s, %s, -1;", one(g, []string{"add.s32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32"}), g.register('r'), g.register('r'))
	case 8:
		g.say("bar.red.%s 0, %s;", g.expand(one(g, []string{"popc.u32 $R", "and.pred $P", "or.pred $P"}))+",", g.register('p'))
	case 9: // those that part, and say so
		over, p := g.label(), g.register('p')
		g.say("vote.sync.ballot.b32 %%t5, %s, -1; @!%s bra %s;", p, p, over)
		g.say("redux.sync.%s %s, %s, %%t5;", one(g, []string{"add.u32", "max.s32", "xor.b32"}), g.register('r'), g.register('r'))
		g.say("shfl.sync.bfly.b32 %%t6|%%q2, %s, 0, 31, %%t5; add.u32 %s, %%t6, 1;\n%s: bar.warp.sync -1;", g.register('r'), g.register('r'), over)
	case 10: // a loop of everybody's
		if g.loose { // as above
			return
		}
		again := g.label()
		g.say("mov.u32 %%c7, %d;\n%s:", 1+g.n(4), again)
		g.depth += 2
		g.block(2 + g.n(3))
		g.depth -= 2
		g.exchange()
		g.say("sub.u32 %%c7, %%c7, 1; setp.ne.u32 %%q1, %%c7, 0; @%%q1 bra %s;", again)
	case 11:
		g.say("bar.sync 0; and.b32 %%t0, %s, 12; mov.u32 %%t1, sums; add.u32 %%t1, %%t1, %%t0; red.shared.add.u32 [%%t1+32], %s; bar.sync 0; ld.shared.u32 %s, [sums+%d]; bar.sync 0;",
			g.register('r'), g.register('r'), g.register('r'), 4*g.n(16))
	}
}

// exchange has threads read what others have written.
func (g *generator) exchange() {
	g.say("bar.sync 0; shl.b32 %%t0, %%me, 4; mov.u32 %%t1, pool; add.u32 %%t0, %%t1, %%t0;")
	g.say("st.shared.v2.u32 [%%t0], {%s, %s}; st.shared.u64 [%%t0+8], %s; bar.sync 0;", g.register('r'), g.register('r'), g.register('d'))
	g.say("add.u32 %%t2, %s, %d; and.b32 %%t2, %%t2, %d; shl.b32 %%t2, %%t2, 4; add.u32 %%t2, %%t2, %%t1;", one(g, []string{"%me", g.register('r')}), g.n(64), randomThreads-1)
	g.say("ld.shared.%s %s, [%%t2+%d]; ld.shared.v2.u32 {%%r0, %%r5}, [%%t2+8]; bar.sync 0;", one(g, []string{"u32", "u8", "s16"}), g.register('r'), g.n(2)*4)
}

// functions writes two functions of the same kind, the second of which may call
// itself, and a table of them.
func (g *generator) functions() {
	for i := range 2 {
		f := &generator{state: g.next(), name: fmt.Sprintf("%s_%d", g.name, i), depth: 1, body: &g.module}
		f.say(".func (.param .b64 result) %s(.param .b32 a, .param .b64 b) {", f.name)
		f.declare()
		f.say(".reg .b64 %%depot;")
		f.say(".local .align 16 .b8 depot[64]; mov.u64 %%depot, depot; ld.param.u32 %%r0, [a]; ld.param.u64 %%d0, [b];")
		for k := range 7 {
			f.say("add.u32 %%r%d, %%r0, %d;", k+1, int32(f.next()))
		}
		for k := range 5 {
			f.say("xor.b64 %%d%d, %%d0, %d;", k+1, int64(f.next()))
		}
		for k := range 4 {
			f.say("st.local.v2.u64 [depot+%d], {%%d%d, %%d%d}; cvt.rn.f32.s32 %%f%d, %%r%d; cvt.rn.f64.s32 %%g%d, %%r%d; cvt.u16.u32 %%h%d, %%r%d; cvt.rn.f16.f32 %%e%d, %%f%d; setp.lt.s32 %%p%d, %%r%d, 0;",
				16*k, k, k+1, k, k, k, k, k, k, k, k, k, k)
		}
		f.say("mov.b32 %%x0, {%%e0, %%e1}; mov.b32 %%x1, {%%e2, %%e3};")
		if i == 1 {
			over := f.label()
			f.say("and.b32 %%t0, %%r0, 7; setp.eq.u32 %%q0, %%t0, 0; @%%q0 bra %s; sub.u32 %%r1, %%r0, 1;", over)
			f.say("{ .param .b32 a1; .param .b64 a2; .param .b64 back; st.param.b32 [a1], %%r1; st.param.b64 [a2], %%d0;")
			f.say("call (back), %s, (a1, a2); ld.param.b64 %%d1, [back]; }\n%s:", f.name, over)
		}
		for range 6 + f.n(8) {
			f.instruction()
		}
		f.say("xor.b64 %%d0, %%d0, %%d1; cvt.u64.u32 %%u0, %%r0; add.u64 %%d0, %%d0, %%u0; st.param.b64 [result], %%d0; ret;\n}")
	}
	fmt.Fprintf(&g.module, ".global .align 8 .u64 functions_%s[2] = {%s_0, %s_1};\n", g.name, g.name, g.name)
	g.calls = true
}

// call calls a function, by its name or by its address.
func (g *generator) call() {
	g.say("{ .param .b32 a1; .param .b64 a2; .param .b64 back; st.param.b32 [a1], %s; st.param.b64 [a2], %s;", g.register('r'), g.register('d'))
	if g.chance(2) {
		g.say("call (back), %s_%d, (a1, a2);", g.name, g.n(2))
	} else {
		proto := g.label()
		g.say("and.b32 %%t0, %s, 8; cvt.u64.u32 %%u0, %%t0; mov.u64 %%u1, functions_%s; add.s64 %%u1, %%u1, %%u0; ld.global.u64 %%fun, [%%u1];", g.register('r'), g.name)
		g.say("%s: .callprototype (.param .b64 _) _ (.param .b32 _, .param .b64 _);\ncall (back), %%fun, (a1, a2), %s;", proto, proto)
	}
	g.say("ld.param.b64 %s, [back]; }", g.register('d'))
}
