package ptx

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// entry is a module with a kernel k(in, out) that does what body says. The body
// begins in line 6.
func entry(body string) string {
	return formHeader + `.visible .entry k(.param .u64 in, .param .u64 out) {
.reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .b16 %rs<9>; .reg .f32 %f<9>; .reg .f64 %fd<9>; .reg .pred %p<9>;
` + body + "\n}\n"
}

// A mistake is refused with its line and a reason.
func TestParseErrors(t *testing.T) {
	for _, tc := range []struct {
		text string
		line int
		say  string
	}{
		{"", 1, "no .version"},
		{"hello", 1, "no .version"},
		{".version x\n.target sm_75", 1, `"x" is no version`},
		{".version 2.3\n.target sm_20", 1, "3 to 9"},
		{".version 10.0\n.target sm_75", 1, "3 to 9"},
		{".version 7.4\n.address_size 64", 2, `where ".target" belongs`},
		{".version 7.4\n.target foo", 2, `"foo" is not supported`},
		{".version 7.4\n.target map_f64_to_f32", 2, "not supported"},
		{".version 7.4\n.target debug", 2, "no architecture"},
		{".version 7.4\n.target sm_75\n.address_size 32", 3, "64-bit"},
		{formHeader + ".tex .u32 t;", 4, `".tex" is not supported here`},
		{formHeader + ".entry k(.param .u64 a) {\nret;", 5, "end of the text"},
		{formHeader + ".entry k(.param .u64 a {", 4, `unexpected "{"`},
		{formHeader + ".entry k(.reg .u32 a) {}", 4, `where ".param" belongs`},
		{formHeader + ".entry k() {}\n.entry k() {}", 5, "defined twice"},
		{formHeader + ".func f(.param .u32 a, .param .u32 a) {}", 4, "declared twice"},
		{formHeader + ".entry k(.param .b8 a[]) {}", 4, "no length"},
		{formHeader + ".entry k(.param .b8 a[40000]) {}", 4, "bytes of parameters"},
		{formHeader + "/* no end", 4, "comment without an end"},
		{formHeader + ".file 1 \"no end\n", 4, "string without an end"},
		{formHeader + "#", 4, "unexpected character"},
		{formHeader + ".global .u32 x[] ;", 4, "no length"},
		{formHeader + ".extern .global .u32 x;", 4, "another module"},
		{formHeader + ".global .u32 x;\n.global .u32 x;", 5, "declared twice"},
		{formHeader + ".global .u32 x;\n.func x() {}", 5, "x is a variable's name, too"},
		{formHeader + ".func x() {}\n.extern .shared .b8 x[];", 5, "x is a function's name, too"},
		{formHeader + ".entry k()\n.maxclusterrank 8 .explicitcluster .reqnctapercluster 2, 1, 1 {}", 5, ".explicitcluster is not supported: it is for clusters"},
		{formHeader + ".global .pred x;", 4, "no type of a variable"},
		{formHeader + ".global .texref x;", 4, "for textures"},
		{formHeader + ".global .surfref x;", 4, "for surfaces"},
		{formHeader + ".entry k() .explicitcluster .reqnctapercluster 2 {}", 4, "for clusters"},
		{formHeader + ".global .align 3 .u32 x;", 4, "power of two"},
		{formHeader + ".global .u32 x[2] = {1, 2, 3};", 4, "has 8 bytes"},
		{formHeader + ".global .u32 x[2][2] = {{1, 2, 3}, {4}};", 4, "too long"},
		{formHeader + ".global .b8 x[1][10000000] = {{}};\n.global .b8 y[1][10000000] = {{}};", 5, "too long"},
		{formHeader + ".global .u8 x = 256;", 4, "does not fit .u8"},
		{formHeader + ".global .u32 x = 1.5;", 4, "does not fit .u32"},
		{formHeader + ".global .u32 x = y;\n.global .u32 y;", 4, "does not fit .u32"},
		{formHeader + ".global .u64 x = y;", 4, "no variable y"},
		{formHeader + ".shared .u32 x = 1;", 4, "initial value"},
		{formHeader + ".global .u64 x[1099511627777];", 4, "want a number"},
		{formHeader + ".global .u64 x[1099511627776][1099511627776];", 4, "too large"},
		{formHeader + ".global .b8 x[1000000000000];\n.global .b8 y[1000000000000];", 5, "bytes of variables"},
		{formHeader + ".const .b8 x[65537];", 4, "bytes of constants"},

		{entry("frobnicate.u32 %r1, %r2;"), 6, "the instruction frobnicate.u32 is not supported"},
		{entry("\n\nadd.rna.f32 %f1, %f2, %f3;"), 8, "add.rna.f32 is not supported: .rna is not known"},
		{entry("vadd2.u32.u32.u32 %r1., %r2, %r3, %r4;"), 6, "no register %r1."},
		{entry("vshl.u32.u32.u32.clamp.max %r1, %r2, %r3, %r4;"), 6, "not known"},
		{formHeader + ".visible .global .attribute(.managed) .align 4 .u32 v;\n", 4, "managed"},
		{entry("ld.global.b128 %rd1, [%rd2];"), 6, "registers have up to 64 bits"},
		{entry("atom.global.cas.b128 %rd1, [%rd2], %rd3, %rd4;"), 6, "registers have up to 64 bits"},
		{entry(".reg .b128 %rq<2>;"), 6, "b128"},
		{entry("red.global.add.v2.f64 [%rd1], {%fd1, %fd2};"), 6, "is not supported"},
		{entry("red.shared.add.v2.f32 [%r1], {%f1, %f2};"), 6, "is not supported"},
		{entry("vset.u32.u32.lt.min %r1, %r2, %r3, %r4;"), 6, "not known"},
		{entry("min.f32 %f1, %f2, %f3, %f4;"), 6, `unexpected ","`},
		{entry("cvt.rn.bf16.u8 %rs1, %rs2;"), 6, "not from bytes to .bf16"},
		{entry("cvt.rni.s32.s64 %r1, %rd1;"), 6, "nothing is rounded"},
		{entry("cvt.f32.s32 %f1, %r1;"), 6, "without a rounding"},
		{entry("cvt.rni.f64.f32 %fd1, %f1;"), 6, "to a whole number of another type"},
		{entry("cvt.rm.relu.f16.f32 %rs1, %f1;"), 6, "rounded like this"},
		{entry("cvt.rn.ftz.satfinite.bf16.f32 %rs1, %f1;"), 6, "clamped in two ways"},
		{entry("neg.rn.f32 %f1, %f2;"), 6, "nothing is rounded"},
		{entry("abs.sat.f32 %f1, %f2;"), 6, "nothing is rounded"},
		{entry("max.rn.f64 %fd1, %fd2, %fd3;"), 6, "nothing is rounded"},
		{entry("cvt.f32.f64 %f1, %fd1;"), 6, "with or without a rounding"},
		{entry("add.cc.u16 %rs1, %rs2, %rs3;"), 6, "the carry with .u16"},
		{entry("addc.lo.u32 %r1, %r2, %r3;"), 6, ".lo is not known"},
		{entry("madc.u32 %r1, %r2, %r3, %r4;"), 6, "without .lo or .hi"},
		{entry("add.u32.u32 %r1, %r2, %r3;"), 6, "a type too many"},
		{entry("add %r1, %r2, %r3;"), 6, "a type is missing"},
		{entry("add.b32 %r1, %r2, %r3;"), 6, "not with .b32"},
		{entry("add.u32 %r1, %r2;"), 6, `unexpected ";" where "," belongs`},
		{entry("add.u32 %r1, %r2, %r3, %r4;"), 6, `unexpected ","`},
		{entry("add.u32 %r1, %r2, %r3"), 7, `unexpected "}" where ";" belongs`},
		{entry("add.u32 %r1, %r2, %rd1;"), 6, "%rd1 is a .b64 register where a .u32 belongs"},
		{entry("add.u32 %r1, %r2, %rs1;"), 6, "%rs1 is a .b16 register"},
		{entry("add.u32 %f1, %r2, %r3;"), 6, "%f1 is a .f32 register"},
		{entry("add.u32 %r1, %r2, %r99;"), 6, "no register %r99"},
		{entry("add.u32 %r1, %r2, 1.5;"), 6, "does not fit .u32"},
		{entry("add.f32 %f1, %f2, 1;"), 6, "does not fit .f32"},
		{entry("add.u32 %r1, %r2, 0x100000000;"), 6, "does not fit .u32"},
		{entry("add.u32 5, %r2, %r3;"), 6, "a register belongs here"},
		{entry("add.u32 %tid.x, %r2, %r3;"), 6, "a register belongs here"},
		{entry("add.u32 %r1, %clock, %r3;"), 6, "%clock can only be moved"},
		{entry("add.u32 %r1|%r2, %r2, %r3;"), 6, "a register belongs here"},
		{entry("add.u32 %r1, !%r2, %r3;"), 6, "! does not belong before %r2"},
		{entry("add.u32 %r1, {%r2, %r3}, %r3;"), 6, "does not belong here"},
		{entry("add.u32 %r1, [%rd1], %r3;"), 6, "does not belong here"},
		{entry("add.u32 %r1, %r2, nothing;"), 6, "no variable nothing"},
		{entry("mul.u32 %r1, %r2, %r3;"), 6, "without .lo, .hi or .wide"},
		{entry("mul.wide.u64 %rd1, %rd2, %rd3;"), 6, "not with .u64"},
		{entry("setp.lt.b32 %p1, %r2, %r3;"), 6, ".lt of .b32"},
		{entry("setp.lo.s32 %p1, %r2, %r3;"), 6, ".lo of .s32"},
		{entry("setp.lt.ftz.f64 %p1, %fd2, %fd3;"), 6, ".ftz is not known"},
		{entry("setp.lo.f16 %p1, %rs2, %rs3;"), 6, ".lo of .f16"},
		{entry("setp.lt.f16x2 %p1, %r2, %r3;"), 6, "without a second target"},
		{entry("setp.u32 %p1, %r2, %r3;"), 6, "without a comparison"},
		{entry("cvt.f16.f32 %rs1, %f1;"), 6, "with or without a rounding"},
		{entry("cvt.rn.f32.f16 %f1, %rs1;"), 6, "with or without a rounding"},
		{entry("cvt.rn.e4m3x2.f32 %rs1, %f1, %f2;"), 6, "rounded or clamped"},
		{entry("cvt.s32.f32 %r1, %f1;"), 6, "without a rounding"},
		{entry("cvta.u64 %rd1, %rd2;"), 6, "without a space"},
		{entry("mov.b64 %rd1, {%r1, %r2, %r3};"), 6, "3 parts"},
		{entry("ld.global.u32 %r1, %rd1;"), 6, "an address in brackets"},
		{entry("ld.global.u32 %r1, [%r2];"), 6, "%r2 is a .b32 register"},
		{entry("ld.global.u32 %rs1, [%rd1];"), 6, "%rs1 is a .b16"},
		{entry("ld.global.v2.u32 %r1, [%rd1];"), 6, "1 values, where the instruction has 2"},
		{entry("ld.global.f32 %rd1, [%rd2];"), 6, "%rd1 is a .b64"},
		{entry("ld.global.u64 %rd1, [in];"), 6, "not in the space"},
		{entry("ld.volatile.param.u64 %rd1, [in];"), 6, "nobody writes there"},
		{entry("ld.relaxed.gpu.const.u32 %r1, [%rd2];"), 6, "nobody writes there"},
		{entry("ld.acquire.sys.param.u64 %rd1, [in];"), 6, "nobody writes there"},
		{entry("st.const.u32 [%rd2], %r1;"), 6, "constants are not written"},
		{entry("ld.global.v2.b16 {%rs1, %r1}, [%rd2];"), 6, "different widths"},
		{entry("ld.global.v2.b16 {%r1, %rs1}, [%rd2];"), 6, "different widths"},
		{entry("ld.global.v4.u8 {_, %r1, _, %rs1}, [%rd2];"), 6, "different widths"},
		{entry("ld.wrong.u64 %rd1, [%rd2];"), 6, ".wrong is not known"},
		{entry("ld.param.u64 %rd1, [in+1.5];"), 6, "whole number"},
		{entry("st.global.f32 [%rd1], %rd2;"), 6, "%rd2 is a .b64"},
		{entry("atom.global.add.b32 %r1, [%rd1], %r2;"), 6, "with .b32"},
		{entry("atom.local.add.u32 %r1, [%rd1], %r2;"), 6, "in this space"},
		{entry("red.global.cas.b32 [%rd1], %r2, %r3;"), 6, "with .b32"},
		{entry("bra nowhere;"), 6, "no label nowhere"},
		{entry("{ here: }\nbra here;"), 7, "no label here"},
		{entry("a: a: ret;"), 6, "there twice"},
		{entry("@%r1 ret;"), 6, "a guard has to be a predicate"},
		{entry("bar.sync 16;"), 6, "16 barriers"},
		{entry("bar.arrive 1;"), 6, "with 1 operands"},
		{entry("membar;"), 6, "without a scope"},
		{entry("call nothing;"), 6, "no function nothing"},
		{entry("call k, (in, out);"), 6, "no function k"},
		{formHeader + ".func f(.param .b64 a) {}\n" + strings.TrimPrefix(entry("call f, (in);"), formHeader), 7, "only .param variables"},
		{formHeader + ".func f(.param .b64 a) {}\n" + strings.TrimPrefix(entry("call f;"), formHeader), 7, "0 parameters"},
		{formHeader + ".func (.param .b32 a, .param .b32 b) f() {}", 4, "more than one result"},
		{entry("p: .callprototype (.param .b32 a, .param .b32 b) _ ();"), 6, "more than one result"},
		{entry(".reg .b32 %r<4>;"), 6, "declared twice"},
		{entry(".reg .b7 %x;"), 6, "no type of a register"},
		{entry(".local .b8 big[600000];"), 6, "too large"},
		{entry(".shared .b8 big[50000];\nmov.u32 %r1, big;"), 4, "bytes of shared memory"},
		{strings.Replace(entry(".shared .b8 small[1];\nmov.u32 %r1, small; mov.u32 %r1, dyn;"), ".visible", ".extern .shared .align 65536 .b8 dyn[]; .visible", 1), 4, "bytes of shared memory"},
		{entry(".tex .u32 t;"), 6, "not supported here"},
		{entry(strings.Repeat("{", 100)), 6, "nested too deeply"},
		{entry("mov.b64 %rd1, {%r1,%r1,%r1,%r1,%r1,%r1,%r1,%r1,%r1};"), 6, "more than 8 values"},
		{entry(".loc 1 2;"), 6, "want a number"},
		{entry(".pragma nounroll;"), 6, "a string belongs"},
	} {
		_, err := Parse(tc.text)
		var bad *Error
		require.ErrorAs(t, err, &bad, tc.text)
		require.Contains(t, err.Error(), tc.say)
		require.Equal(t, tc.line, bad.Line, "%s\n%v", tc.text, err)
	}
}

// Version 10 is too new; version 2 is not.
func TestNewerVersion(t *testing.T) {
	for text, newer := range map[string]bool{".version 10.0\n": true, ".version 2.3\n": false} {
		_, err := Parse(text)
		require.Equal(t, newer, err.(*Error).Newer)
	}
}

// Directives and comments of nvcc change nothing.
func TestRemarks(t *testing.T) {
	m := parsed(t, ".version 7.4\n.target sm_75, debug\n.address_size 64\n"+`
.file 1 "a.cu", 123, 456
.pragma "nounroll";
.weak .func unused;
.visible .entry k(.param .u64 .ptr .global .align 8 p, .param .align 8 .b8 s[16]) .maxntid 8, 4 .minnctapersm 2
{
	.loc 1 2 3
	.loc 1 2 3, function_name $L__info_string0, inlined_at 1 5 6
	.pragma "nounroll";
	{ twice: bra twice; }
	{ twice: bra twice; }
	ret;
}
.section .debug_abbrev { .b8 1 .b8 2 }
`)
	require.Equal(t, []string{"k"}, m.Entries())
	k, ok := m.Kernel("k")
	require.True(t, ok)
	require.Equal(t, []Param{{0, 8}, {8, 16}}, k.Params)
	require.Equal(t, 32, k.MaxThreads)
	require.Equal(t, 24, k.ParamBytes())
	_, ok = m.Kernel("unused")
	require.False(t, ok)
	require.Equal(t, "7.4", m.Version)
	require.Equal(t, "sm_75", m.Target)
}

// Variables have their values where they belong, and the addresses of others.
func TestInitialValues(t *testing.T) {
	m := parsed(t, formHeader+`
.extern .global .u32 later;
.global .align 4 .u32 later = 7;
.global .u16 rows[2][3] = {{1, 2}, {-1}};
.global .v2 .f32 pair = {0f3F800000, 2.0};
.global .f64 d = 0d3ff0000000000000;
.global .u64 to[3] = {generic(later), rows+2, 5};
.const .b8 open[] = {1, 2, 3};
.global .b8 empty[40];
`)
	at := func(name string) uint64 { return map[string]uint64{"later": 0x1000, "rows": 0x2000}[name] }
	require.Equal(t, []byte{7, 0, 0, 0}, m.Initial("later", at))
	require.Equal(t, []byte{1, 0, 2, 0, 0, 0, 255, 255, 0, 0, 0, 0}, m.Initial("rows", at))
	require.Equal(t, []byte{0, 0, 0x80, 0x3f, 0, 0, 0, 0x40}, m.Initial("pair", at))
	require.Equal(t, []byte{0, 0, 0, 0, 0, 0, 0xf0, 0x3f}, m.Initial("d", at))
	require.Equal(t, params(uint64(0x1000), uint64(0x2002), uint64(5)), m.Initial("to", at))
	require.Empty(t, m.Initial("empty", at))
	require.Nil(t, m.Initial("nothing", at))
	var names []string
	for _, v := range m.Variables() {
		names = append(names, v.Name)
	}
	require.Equal(t, []string{"later", "rows", "pair", "d", "to", "open", "empty"}, names)
	require.Equal(t, Variable{"open", 3, 1, true}, m.Variables()[5])
	require.Equal(t, Variable{"pair", 8, 8, false}, m.Variables()[2])
}

// Whatever the text, the parser comes to an end without a panic.
func FuzzParse(f *testing.F) {
	for _, name := range []string{"vector", "pattern", "memory"} {
		f.Add(kernelText(f, name))
	}
	f.Add(entry("mov.b64 {%r1, %r2}, %rd1; setp.lt.and.u32 %p1|%p2, %r1, 5, !%p3; { .reg .b32 %x; @!%p1 bra L; L: ret; }"))
	f.Add(formHeader + ".global .u64 a[2][2] = {{1, b+4}, {generic(a)}}; .const .v2 .f32 b = {1.5, 0f3f800000};")
	f.Add(entry("{ .param .b32 a; st.param.b32 [a+0], %r1; call (a), f, (a); }"))
	f.Add(entry("vadd.u32.u32.s32.sat %r1.b1, %r2.h0, %r3.b2, %r4; vadd2.u32.u32.u32 %r1.h1, %r2.h21, %r3.h03, %r4; vmad.s32.s32.s32.sat.shr7 %r1, -%r2.b0, %r3, %r4;"))
	f.Add(entry("vsub4.s32.s32.u32.add %r1.b20, %r2.b7310, %r3.b2465, %r4; vset.u32.s32.lt.add %r1, %r2, %r3, %r4; lop3.b32 %r1, %r2, %r3, %r4, 0x96; bfi.b32 %r1, %r2, %r3, 1, 2;"))
	f.Add(entry("setp.lt.and.f16x2 %p1|%p2, %r1, %r2, !%p3; set.gt.bf16x2.bf16x2 %r1, %r2, %r3; cvt.rn.satfinite.relu.e4m3x2.f32 %rs1, %f1, %f2; cvt.pack.sat.u8.s32.b32 %r1, %r2, %r3, %r4;"))
	f.Add(entry("fma.rz.ftz.sat.f32 %f1, %f2, %f3, %f4; min.NaN.xorsign.abs.f16x2 %r1, %r2, %r3; madc.hi.cc.u32 %r1, %r2, %r3, %r4; ex2.approx.ftz.bf16x2 %r1, %r2; prmt.b32.f4e %r1, %r2, %r3, %r4;"))
	f.Fuzz(func(t *testing.T, text string) {
		m, err := Parse(text)
		if err != nil {
			require.IsType(t, &Error{}, err)
			return
		}
		for _, name := range m.Entries() {
			_, ok := m.Kernel(name)
			require.True(t, ok)
		}
	})
}

// The headers of CUDA write directives and types without blanks between them in what is
// inlined; and a driver reads what old compilers have written.
func TestWithoutBlanks(t *testing.T) {
	text := `.version 3.0
.target sm_20
.address_size 64
.visible .entry k(.param.u64.ptr.global.align 8 in, .param.u64 out) {
.reg.b64 %rd<9>; .shared.align 8 .b8 bytes[16];
ld.param.u64 %rd1,[in]; ld.param.u64 %rd2,[out]; ld.global.u64 %rd3,[%rd1];
{.reg.b32         f, g; .reg .f16x2 two; mov.b32 two, 0x3c003c00; add.f16x2 two, two, two; mov.b32 g, two; add.u32 g, g, 0xbfffc007;
 .reg.pred p;
  mov.b64 {f,g},%rd3;
  setp.eq.u32 p,f,5; @p mov.b32 f,0X00000007U;
  mov.b64 %rd3,{f,g};
}
st.global.u64 [%rd2],%rd3;
}
`
	require.EqualValues(t, 7<<32|7, results(t, text, 7<<32|5)[0])
	_, err := Parse(strings.Replace(text, ".reg.b64", ".reg.b64.", 1))
	require.ErrorContains(t, err, `unexpected "."`)
}
